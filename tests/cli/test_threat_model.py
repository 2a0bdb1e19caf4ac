"""docs/threat-model.md against the tests: each threat has one that exists, or the words that say that nobody defends it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import pytest
from distribution import REPO

TEXT = (REPO / "docs" / "threat-model.md").read_text(encoding="utf-8")
NOT_DEFENDED = "not defended"


@dataclass(frozen=True)
class Threat:
    section: str
    what: str
    promise: str
    proof: str

    @property
    def tests(self) -> list[str]:
        return re.findall(r"`([^`]+)`", self.proof)


def threats(text: str) -> Iterator[Threat]:
    section = ""
    for line in text.splitlines():
        if line.startswith("## "):
            section = line[3:]
        cells = [cell.strip() for cell in line[1:-1].split("|")] if line.startswith("| ") else []
        if cells and cells[0] != "threat":
            yield Threat(section, *cells)


def faults(threat: Threat) -> list[str]:
    if threat.proof == NOT_DEFENDED:
        return []
    if not threat.tests or re.sub(r"`[^`]+`|[, ]", "", threat.proof):
        return [f"{threat.what}: neither tests alone nor {NOT_DEFENDED!r}"]
    if not threat.promise:
        return [f"{threat.what}: no promise"]
    return [f"{threat.what}: there is no {name}" for name in threat.tests if not exists(name)]


def exists(name: str) -> bool:
    path, _, test = name.partition("::")
    return path.startswith("tests/") and test in named_in(path)


@cache
def named_in(path: str) -> frozenset[str]:
    """The functions of a file that pytest takes for tests; and the file itself, as the empty name, where it has any."""
    if not (REPO / path).is_file():
        return frozenset()
    tree = ast.parse((REPO / path).read_text(encoding="utf-8"))
    found = {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}
    return frozenset(found | {""}) if found else frozenset()


@pytest.mark.parametrize("threat", list(threats(TEXT)), ids=lambda threat: f"{threat.section}: {threat.what}")
def test_a_threat_has_its_test(threat: Threat) -> None:
    assert faults(threat) == []


def test_every_attacker_is_there() -> None:
    """And each with something that is proven, but those whom nothing stops."""
    proven = {t.section for t in threats(TEXT) if t.proof != NOT_DEFENDED}
    assert proven == set(re.findall(r"(?m)^## (.+)$", TEXT))
    for word in (
        "patch",
        "manifest",
        "mirror",
        "index",
        "bundle",
        "configuration",
        "environment",
        "Terminals",
        "Other users",
        "killed",
        "cache",
        "change the distribution",
        "cluster",
    ):
        assert any(word in section for section in proven), word


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("| it bites | refused | `tests/cli/test_threat_model.py::test_there_is_no_such_test` |", "there is no"),
        ("| it bites | refused | `tests/nowhere.py` |", "there is no"),
        ("| it bites | refused | `tests/distribution.py` |", "there is no"),
        ("| it bites | refused | surely |", "neither tests"),
        ("| it bites | refused | |", "neither tests"),
        ("| it bites | | `tests/cli/test_threat_model.py::test_a_threat_has_its_test` |", "no promise"),
    ],
)
def test_a_row_without_proof_is_found(row: str, fault: str) -> None:
    (threat,) = threats(f"## A\n{row}\n")
    assert fault in str(faults(threat))
