"""Whose lines `blame` found, as text and as JSON. Computes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from patchctl.terminal.text import one_line, visible_line

if TYPE_CHECKING:
    from patchctl.blame.blame import Blamed
    from patchctl.terminal.style import Style


def blame_json(found: Sequence[Blamed]) -> dict[str, Any]:
    """The shape patchctl.blame/1 (docs/json.md)."""
    return {"lines": [{**asdict(one.place), **{k: v for k, v in asdict(one).items() if k != "place"}} for one in found]}


def blame_text(found: Sequence[Blamed], style: Style) -> Iterator[str]:
    """A line for each place, with what to read of a patch below it."""
    for one in found:
        often = f"  ({one.place.count} times)" if one.place.count > 1 else ""
        place = visible_line(f"{one.place.file}:{one.place.line}") + often
        if one.owner is None:
            yield f"{place}  {style('not ours' if one.upstream is None else 'cannot tell', dim=True)}: {one_line(one.why or '')}"
            continue
        where = f"{one.upstream}/{one.stack}"
        owner = style.bad(one.owner) if one.patch else style.note(one.owner)
        yield f"{place}  {owner}  {visible_line(where)}" + (f"  ({one_line(one.why)})" if one.why else "")
        if one.text:
            yield f"    {one_line(one.text, 160)}"
        if one.patch:
            yield f"    patch {visible_line(one.patch)}"
            yield f"    switch {one_line(one.switch or 'none', 200)}"
        if one.page:
            yield f"    page {visible_line(one.page)}"
