"""Text and JSON output of `repair`. Computes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from patchctl.doc import Doc, Spread
from patchctl.terminal.text import visible_line
from patchctl.workspace.repair import Repair

if TYPE_CHECKING:
    from patchctl.terminal.style import Style


@dataclass(frozen=True)
class RepairOutput:
    """What `repair` prints."""

    done: Annotated[Repair, Spread()]
    dry_run: Annotated[bool, Doc("true if nothing was written")]


def repair_text(result: Repair, style: Style, *, dry_run: bool) -> Iterator[str]:
    """Yield the problems, the result for each tree, and the location of kept files."""
    for seen in result.found:
        yield f"{style.bad(seen.kind)}  {visible_line(seen.message)}  ({visible_line(seen.place)})"
    words = {
        "base": style.good("at its base"),
        "aside": style.note("moved aside whole: it cannot be made from here"),
        "left": style.note("left as it is, and no longer ours"),
        "gone": "no longer there",
    }
    for tree in result.trees:
        yield f"{tree.name:<12} {words[tree.outcome]}  in {visible_line(tree.folder)}"
    yield from (f"kept aside   {visible_line(path)}" for path in result.kept)
    if result.healthy:
        yield f"{visible_line(result.workspace)} is healthy: nothing was changed"
    elif dry_run:
        yield "nothing was changed: repair without --dry-run mends it"
