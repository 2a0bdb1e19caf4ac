"""What was not checked: each with its places, or in one line when it is much."""

from __future__ import annotations

import pytest

from patchctl.errors import Tried
from patchctl.findings import RENDERERS, NotChecked, Report, Shown, report_text
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
