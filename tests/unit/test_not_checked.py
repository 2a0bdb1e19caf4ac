"""What was not checked: each with its places, or in one line when it is much."""

from __future__ import annotations

import pytest

from patchctl.errors import Tried
from patchctl.findings import RENDERERS, Finding, NotChecked, Report, Shown, report_text
from patchctl.terminal.text import Style


@pytest.mark.parametrize("count", [1, 3, 4, 40])
def test_a_few_are_lines_and_many_are_one(count: int) -> None:
    """GitHub shows ten annotations of a step, and a person the last lines."""
    missing = [NotChecked(f"clock v{n} from git", (Tried(f"place {n}", "not there"),)) for n in range(count)]
    report = Report(not_checked=missing)
    shown = [line for line in report_text(report, Style(False)) if line.startswith("not checked")]
    annotations = RENDERERS["github"](Shown(report, "verify", None, {})).splitlines()
    assert len(shown) == len(annotations) == (count if count <= 3 else 1)
    for lines in (shown, annotations):
        assert all(any(f"clock v{n} from git" in line for line in lines) for n in range(count))
        assert "place 0 (not there)" in lines[0]
    assert (f"not checked: {count}, " in shown[0]) == (count > 3)


def test_verbose_names_every_place() -> None:
    missing = [NotChecked(f"clock v{n} from git", (Tried(f"place {n}", "not there"),)) for n in range(9)]
    lines = [*report_text(Report(not_checked=missing), Style(False), verbose=True)]
    assert [line for line in lines if line.startswith("not checked")] == [
        f"not checked: clock v{n} from git: place {n} (not there)" for n in range(9)
    ]


def test_totals_come_first_and_then_files_with_errors() -> None:
    found = [Finding("rule", "a note", "a.yaml", 1, "note"), Finding("rule", "an error", "b.yaml", 1)]
    first, *rest = report_text(Report(found), Style(False))
    assert first == "checked manifests only: 1 error, 1 note"
    assert [line for line in rest if not line.startswith(" ")] == ["b.yaml", "a.yaml"]
