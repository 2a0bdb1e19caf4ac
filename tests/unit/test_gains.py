"""docs/benchmarks.md says of every feature with a switch what it brings, and of what kind the figure is."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
KINDS = {"measured", "counted", "simulated", "theirs", "reasoned", "enables"}


def rows() -> list[list[str]]:
    page = (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8")
    section = page.partition("## What each feature brings\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


def test_every_feature_is_in_the_table_and_none_that_is_gone() -> None:
    named = {name for row in rows() for name in re.findall(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)+|\bhdp\b", row[0])}
    patches = {path.parent.name: path for path in ROOT.glob("patches/*/*/*/*.patch")}
    features = {name for name, path in patches.items() if "-feature-" in path.name}
    assert features
    assert features <= named
    assert named - {"dynamic_context_parallel"} <= set(patches)


def test_each_figure_has_a_kind() -> None:
    assert {kind for row in rows() for kind in row[-1].split(", ")} <= KINDS
