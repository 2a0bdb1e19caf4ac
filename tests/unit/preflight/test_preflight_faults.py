"""Every recording of `faults`: the fault is found, by its own finding, and nothing of the kind on a good node.

`python tests/unit/preflight/test_preflight_faults.py` writes the table into docs/preflight.md.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from faults import FAULTS, Fault
from preflight_cases import REPOSITORY, Look

from patchctl.findings.report import Finding

PAGE = REPOSITORY / "docs" / "preflight.md"
TABLE = re.compile(r"(?s)(<!-- faults:begin -->\n).*?(<!-- faults:end -->)")


def about(findings: dict[str, list[Finding]], name: str) -> list[Finding]:
    return [finding for finding in findings.get(name, []) if finding.level != "ok"]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.what)
def test_a_recording_with_one_fault(look: Look, fault: Fault) -> None:
    found = about(look(fault.recipe, **fault.changed), fault.finding)
    assert found, f"nothing is said of it as {fault.finding}"
    assert any(f.blocks for f in found) == fault.stops
    assert all(f.todo for f in found)
    others = [f for f in about(look(fault.recipe), fault.finding) if f.blocks]
    assert fault.changed == {} or fault.finding == "length" or others == []


def table() -> str:
    """Fault, what was said of it before, what is said now."""
    rows = ["| fault in the recording | finding before | finding now | source |", "|---|---|---|---|"]
    for fault in FAULTS:
        now = f"{fault.finding}: {'stops' if fault.stops else 'warning'}"
        rows.append(f"| {fault.what} | {fault.before} | {now} | {fault.source} |")
    return "\n".join(rows) + "\n"


def with_table(text: str) -> str:
    return TABLE.sub(lambda found: found[1] + table() + found[2], text)


def test_the_page_has_the_table() -> None:
    text = PAGE.read_text()
    assert TABLE.search(text) and with_table(text) == text, "python tests/unit/preflight/test_preflight_faults.py"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
