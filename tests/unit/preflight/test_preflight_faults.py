"""Every recording of `faults`: the fault is found, by its own finding, and nothing of the kind on a good node.

`python tests/unit/preflight/test_preflight_faults.py` writes the table into docs/preflight.md.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from chinese import english_in
from faults import FAULTS, Fault
from preflight_cases import REPOSITORY, Look, case_of

from patchctl.findings import Finding
from patchctl.language import CHINESE, ENGLISH, translated, use

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


@pytest.fixture
def chinese() -> Iterator[None]:
    use(CHINESE)
    yield
    use(ENGLISH)


def data_of(title: str) -> list[str]:
    """What the distribution's own files say in English: the recipe, the rules, the practice."""
    case = case_of(title)
    said = [*case.run.limits, *(path.what for path in case.run.paths.values())]
    said += [text for rule in case.all_rules.rules.values() for text in (rule.says, rule.why.rstrip("."), rule.hint)]
    said += [named.note for named in (case.practice.switches.values() if case.practice else ()) if named.note]
    return sorted((" ".join(text.split()) for text in said), key=len, reverse=True)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.what)
def test_in_chinese_no_english_is_left(look: Look, fault: Fault, chinese: None) -> None:
    data = data_of(fault.recipe)
    for finding in (f for found in look(fault.recipe, **fault.changed).values() for f in found):
        for text in filter(None, (finding.message, finding.todo)):
            shown = translated(text)
            for said in data:
                shown = shown.replace(said, "")
            assert not english_in(shown), f"{finding.name}: {shown}"


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
