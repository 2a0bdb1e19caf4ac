"""What `report` prints beside the page, as text and as JSON. Computes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from patchctl.terminal.text import patch_count, visible_line

if TYPE_CHECKING:
    from patchctl.catalog.overview import Overview
    from patchctl.drift.drift_json import SavedDrift
    from patchctl.terminal.style import Style


def page_json(seen: Overview, saved: SavedDrift | None) -> dict[str, Any]:
    """What the page shows, but for the matrix; with `file`, the shape patchctl.report/1 (docs/json.md)."""
    patches = []
    for patch in seen.patches:
        row = asdict(patch)
        patches.append({**row.pop("row"), **row})
    stacks = []
    for stack in seen.stacks:
        row = asdict(stack)
        stacks.append({**row.pop("row"), **row})
    return {
        "profile": seen.profile,
        "profiles": [asdict(p) for p in seen.profiles],
        "stacks": stacks,
        "patches": patches,
        "recipes": [asdict(r) for r in seen.recipes],
        "drift_problem": saved.problem if saved else None,
    }


def written_text(file: str, seen: Overview, saved: SavedDrift | None, style: Style) -> Iterator[str]:
    """Where it is, and what it is of."""
    of = f"profile {seen.profile}" if seen.profile else "all profiles"
    yield f"{style.good('written')}  {visible_line(file)}  {of}, {patch_count(len(seen.patches))}"
    if saved is None:
        yield "without a drift matrix: `patchctl drift --matrix --json >FILE`, then --drift FILE"
    elif saved.problem is not None:
        yield f"without a drift matrix, as that run came to nothing: {visible_line(saved.problem)}"
