"""What `report` makes of changed runs of `drift`: the matrix or an error of ours, and never an element that the page has not."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
from fuzz_readers import A, json_case, refusal
from fuzz_run import SEED

from patchctl.catalog.features import StackRow
from patchctl.catalog.overview import Overview, OverviewStack
from patchctl.drift.saved import read_drift
from patchctl.errors import PatchctlError
from patchctl.report.page import drift
from patchctl.report.page_parts import Names

CASES = 1500
_PATCH: dict[str, Any] = {
    "feature": "typo", "patch": "p", "state": "conflict", "files": [{"path": "a.py", "state": "moved", "target": None, "hunks": []}],
    "names": [{"name": "a.f", "was": "def f()", "now": None, "file": "a.py", "line": 1}], "taken": "v8", "proof": None,
    "stale": True, "clean": False,
}  # fmt: skip
_CALLER = {
    "upstream": "clock",
    "stack": "v2",
    "feature": "bell",
    "patch": "p",
    "names": _PATCH["names"],
    "proof": "none",
}
_RELEASES = [{"release": "v9", "form": "git", "commit": A, "patches": [_PATCH], "callers": [_CALLER]}]
SAMPLES = [
    {"schema": "patchctl.drift/1", "stacks": [{"upstream": "greeter", "stack": "v1", "releases": _RELEASES}], "verdict": 20},
    {"schema": "patchctl.error/1", "error": {"what": "no source"}},
]  # fmt: skip
_PAGE = {
    "section", "h2", "p", "ul", "li", "code", "span", "article", "div", "table", "caption", "thead", "tbody", "tfoot", "tr", "th",
    "td", "details", "summary", "a",
}  # fmt: skip


@pytest.mark.heavy("thousands of inputs")
def test_changed_runs_of_drift(tmp_path: Path) -> None:
    row = StackRow("greeter", "v1", A, None, None, None, 0, ())
    names = Names(Overview(None, (), (OverviewStack(row, (), {}, {}),), (), ()))
    file, taken = tmp_path / "drift.json", 0
    for number in range(CASES):
        data = json_case(random.Random(f"{SEED} report {number}"), SAMPLES)
        file.write_bytes(data)
        try:
            text = drift(names, read_drift(file))
        except PatchctlError as error:
            refusal(error)
            continue
        taken += 1
        text.encode("utf-8")
        assert {*re.findall(r"<([^\s/>]+)", text)} <= _PAGE, (number, data)
    assert 50 < taken < CASES
