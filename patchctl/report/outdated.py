"""Text and JSON output of `outdated`. Computes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from patchctl.doc import Doc
from patchctl.drift.outdated import CONFLICTS, TAKEN, Companion, NewRevision, OutdatedStack
from patchctl.drift.types import EXACT, MOVED
from patchctl.terminal.text import counted, one_line, visible_line

if TYPE_CHECKING:
    from patchctl.terminal.style import Style

_LEAST = (EXACT, MOVED, TAKEN, CONFLICTS)


@dataclass(frozen=True)
class OutdatedOutput:
    """What `outdated` prints."""

    release: Annotated[str | None, Doc("release with these stacks; null if no release has all of them")]
    python: Annotated[str | None, Doc("Python version of the release; null if unspecified")]
    stacks: Annotated[Sequence[OutdatedStack], Doc("one entry per upstream, in manifest order")]


def outdated_text(found: OutdatedOutput, style: Style) -> Iterator[str]:
    """Yield a summary, what is new by stack, what the stacks' files ask of each other, and the next command."""
    new = [one for one in found.stacks if one.newer]
    where = f"release {found.release}: " if found.release else ""
    yield style(f"{where}{len(new)} of {counted(len(found.stacks), 'upstream')} have something newer", bold=True)
    width = max((len(n.name) for one in new for n in one.newer), default=0)
    for one in found.stacks:
        yield f"{one.upstream}/{one.stack}" + ("" if one.newer or one.unavailable else "  up to date")
        yield from (
            f"  {n.kind:<9}  {visible_line(n.name):<{width}}  {_effort(one, n, style)}".rstrip() for n in one.newer
        )
        yield from (
            style(f"  {visible_line(name)} runs on Python {visible_line(needs)}, not on {found.python}", dim=True)
            for name, needs in list(one.hidden.items())[-1:]
        )
        yield from (f"  tried {visible_line(t.place)}: {one_line(t.reason)}" for t in one.unavailable)
        yield from (f"  asks for {_companion(c, style)}" for c in one.companions)
    efforts = [(_LEAST.index(n.effort), one, n) for one in new for n in one.newer if n.effort in _LEAST]
    if efforts:
        _, one, first = min(efforts, key=lambda row: row[0])
        yield f"next: patchctl rebase {one.upstream}/{one.stack} --to {visible_line(first.name)}"


def _effort(stack: OutdatedStack, new: NewRevision, style: Style) -> str:
    if new.effort is None:
        return ""
    if new.effort == CONFLICTS:
        some = ", ".join(new.work[:3]) + (", ..." if len(new.work) > 3 else "")
        return f"{style.bad(CONFLICTS)}  {len(new.work)} of {stack.patches}: {some}"
    return style.good(new.effort) if new.effort == EXACT else style.note(new.effort)


def _companion(one: Companion, style: Style) -> str:
    said = {True: style.good("pinned"), False: style.note("another pin"), None: "not known"}[one.pinned]
    return f"{one.upstream} {visible_line(one.revision)}  {said}"
