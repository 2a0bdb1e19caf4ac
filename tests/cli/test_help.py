"""`patchctl` alone, and the help of its verbs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from distribution import run_patchctl

from patchctl.cli import verbs


@pytest.mark.parametrize("verb", verbs())
def test_the_help_of_every_verb_has_two_examples(verb: str, tmp_path: Path) -> None:
    done = run_patchctl(verb, "--help", home=tmp_path)
    found = [line for line in done.stdout.splitlines() if line.lstrip().startswith("patchctl ")]
    assert done.returncode == 0 and len(found) >= 2, done.stdout


def test_patchctl_alone_says_what_to_do_first(tmp_path: Path) -> None:
    done = run_patchctl(home=tmp_path)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith("Which command?")
    assert len(done.stderr.splitlines()) <= 10 and all(len(line) <= 100 for line in done.stderr.splitlines())
    named = re.findall(r"^  patchctl (\w+)", done.stderr, re.MULTILINE)
    assert len(named) >= 4 and {*named} <= {*verbs()}
