"""Every rule about one patch file: its good samples are found right, its bad ones break this rule and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchctl.check.patch_rules import PATCH_CHECKS
from patchctl.check.rules import all_rules, lint
from patchctl.stack.patches import load_patch

SAMPLES = Path(__file__).parents[2] / "lint"
FILES = sorted(SAMPLES.glob("*/*.patch"))


def rules_broken(file: Path) -> set[str]:
    return {finding.rule for finding in lint(load_patch(file, SAMPLES))}


def word(file: Path) -> str:
    """good or bad, which the name begins with; after `_` it says what is good or bad."""
    return file.stem.split("-", 2)[2][:4].rstrip("_-")


@pytest.mark.parametrize("file", [f for f in FILES if word(f) == "good"], ids=lambda f: f"{f.parent.name}/{f.stem}")
def test_a_good_sample_breaks_no_rule(file: Path) -> None:
    assert rules_broken(file) == set()


@pytest.mark.parametrize("file", [f for f in FILES if word(f) != "good"], ids=lambda f: f"{f.parent.name}/{f.stem}")
def test_a_bad_sample_breaks_its_rule_alone(file: Path) -> None:
    assert rules_broken(file) == {file.parent.name}


def test_every_rule_of_a_patch_file_has_a_good_and_a_bad_sample() -> None:
    all_rules()
    missing = [
        f"{rule}: no {kind} sample"
        for rule in PATCH_CHECKS
        for kind in ("good", "bad")
        if not any(word(f).startswith(kind) for f in FILES if f.parent.name == rule)
    ]
    assert missing == []
    assert {f.parent.name for f in FILES} == set(PATCH_CHECKS)


def test_the_line_of_a_finding_is_that_of_the_fault() -> None:
    file = next(SAMPLES.glob("no-trailing-blanks/*-bad_blank_line.patch"))
    (found,) = lint(load_patch(file, SAMPLES))
    assert found.line is not None
    assert file.read_bytes().split(b"\n")[found.line - 1] == b"+    "
