"""The checks of code and counts, on patches made for them."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from distribution import GREETER, make_distribution

from patchctl.check.patch_rules import check_counts
from patchctl.check.sources import PatchedFiles, PythonCheck, check_switch, switch_name
from patchctl.errors import Tried
from patchctl.findings import Finding, NotChecked, Report
from patchctl.patch.parse import Patch
from patchctl.stack.patches import StackPatch, load_patch


@pytest.fixture(scope="module")
def patches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, StackPatch]:
    made = make_distribution(tmp_path_factory.mktemp("made"), [GREETER])
    return {n: load_patch(made.patch(n), made.root) for n in ("typo", "polite", "loud")}


def names(found: list[Finding]) -> list[tuple[str, str]]:
    return [(f.rule, f.message) for f in found]


def changed(patch: StackPatch, before: bytes | None, after: bytes, path: str = "greeter/hello.py") -> list[Finding]:
    return list(PythonCheck("greeter").changed(PatchedFiles(patch, {path: (before, after)})))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"x = nobody\n", b"x = nobody + 1\n"),
        (b"", b"from a import *\nx = b\n"),
        (b"", b"try:\n    import torch_npu\nexcept ImportError:\n    torch_npu = None\nx = torch_npu\n"),
        (b"print 'old python'\n", b"print 'older python'\n"),
        (b"", "x = '\u2028'\n".encode()),
        (b"", b"# coding: latin-1\nx = '\xe9'\n"),
    ],
    ids=["undefined_before", "star_import", "import_of_an_npu_module", "broken_before", "line_separator", "latin_1"],
)
def test_code_that_is_not_the_patchs_fault(patches: dict[str, StackPatch], before: bytes, after: bytes) -> None:
    assert changed(patches["typo"], before, after) == []


@pytest.mark.parametrize(
    ("before", "after", "rule"),
    [
        (b"x = 1\n", b"x = nobody\n", "undefined-name"),
        (b"x = nobody\n", b"x = nobody\ny = nobody\n", "undefined-name"),
        (b"x = 1\n", b"def f():\n    print(y)\n    y = 1\n", "undefined-name"),
        (b"x = 1\n", b"__all__ = ['y']\n", "undefined-name"),
        (b"x = 1\n", b"x = (\n", "python-compiles"),
        (b"x = 1\n", b"return 1\n", "python-compiles"),
        (b"x = 1\n", b"x = 1\0\n", "python-compiles"),
        (b"x = 1\n", b"x = '\xe9'\n", "python-compiles"),
        (b"x = 1\n", b"x = " + b"(" * 5000 + b")" * 5000, "python-compiles"),
    ],
    ids=[
        "undefined",
        "undefined_once_more",
        "used_before_assignment",
        "exported_and_not_there",
        "syntax_error",
        "return_outside_a_function",
        "nul_byte",
        "not_utf_8",
        "nested_too_deep",
    ],
)
def test_code_that_is(patches: dict[str, StackPatch], before: bytes, after: bytes, rule: str) -> None:
    (found,) = changed(patches["typo"], before, after)
    assert (found.rule, found.file) == (rule, "patches/greeter/v1/typo/0001-bugfix-typo.patch")
    assert patches["typo"].data.split(b"\n")[(found.line or 0) - 1].startswith(b"diff --git a/greeter/hello.py")


def test_files_that_are_no_python_are_left_alone(patches: dict[str, StackPatch]) -> None:
    assert changed(patches["typo"], b"", b"x = (\n", "config.yaml") == []


def test_nothing_is_run(patches: dict[str, StackPatch], tmp_path: Path) -> None:
    trap = tmp_path / "ran"
    changed(patches["typo"], None, f"open({str(trap)!r}, 'w')\n".encode())
    assert not trap.exists()


def test_counts_of_both_parsers_agree_on_real_diffs(patches: dict[str, StackPatch]) -> None:
    assert [f for patch in patches.values() for f in check_counts(patch, "greeter")] == []


def test_counts_that_differ_are_a_finding(patches: dict[str, StackPatch]) -> None:
    """The bytes of one patch beside the parse of another stand for a parser that has read it wrongly."""
    (found,) = check_counts(replace(patches["typo"], patch=patches["polite"].patch), "greeter")
    assert names([found]) == [
        ("unidiff-counts", "unidiff counts (added, removed) lines as [(1, 1)], patchctl as [(4, 0)]")
    ]


def test_a_diff_that_unidiff_cannot_read_is_a_finding(patches: dict[str, StackPatch]) -> None:
    broken = patches["typo"].data.replace(b"@@ -4,7 +4,7 @@", b"@@ -4,9 +4,7 @@")
    (found,) = check_counts(replace(patches["typo"], data=broken), "greeter")
    assert found.rule == "unidiff-counts"


@pytest.mark.parametrize(
    ("switch", "name"),
    [
        ("env GREETER_POLITE=1", "GREETER_POLITE"),
        ("config a.b.c_d=True", "c_d"),
        ("config +polite=x=y", "polite"),
        ("option --in_capitals", "in_capitals"),
        ("option --tone=polite", "tone"),
        ("none", None),
        ("GREETER=1", None),
        (None, None),
    ],
)
def test_the_name_of_a_switch(switch: str | None, name: str | None) -> None:
    assert switch_name(switch) == name


def test_a_switch_is_found_in_added_lines_only_as_a_whole_word(patches: dict[str, StackPatch]) -> None:
    polite = patches["polite"]
    assert list(check_switch(polite, "greeter", None)) == []
    header = replace(polite.header, trailers={**polite.header.trailers})
    header.trailers["Switch"] = [replace(header.trailers["Switch"][0], value="env GREETER_POLIT=1")]
    other = replace(polite, patch=Patch(polite.patch.name, header, polite.patch.changes))
    (note,) = check_switch(other, "greeter", None)
    assert note.level == "note"
    (error,) = check_switch(other, "greeter", PatchedFiles(other, {"greeter/hello.py": (b"", b"GREETER_POLITE")}))
    assert error.level == "error"
    assert (
        list(check_switch(other, "greeter", PatchedFiles(other, {"greeter/hello.py": (b"", b"x[GREETER_POLIT]")})))
        == []
    )


@pytest.mark.parametrize(
    ("severities", "unseen", "skip", "code"),
    [
        ([], [], False, 0),
        (["note"], [], False, 0),
        (["error"], [], False, 1),
        (["error"], ["greeter v1"], True, 1),
        (["note"], ["greeter v1"], False, 3),
        ([], ["greeter v1"], True, 0),
    ],
)
def test_exit_codes(severities: list[str], unseen: list[str], skip: bool, code: int) -> None:
    findings = [Finding("lock", "message", "file", level=s) for s in severities]  # type: ignore[arg-type]
    missing = [NotChecked(f"{stack} from git", (Tried("here", "not there"),), stack) for stack in unseen]
    report = Report(findings, missing, unseen=unseen)
    assert report.exit_code(skip_unavailable=skip) == code
