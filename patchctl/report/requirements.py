"""What `lock --requirements` and `requirements` print. Computes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from patchctl.requirements.lockfile import Lock
    from patchctl.requirements.relock import LockedSet
    from patchctl.requirements.sets import NamedSet
    from patchctl.terminal.style import Style

_SHOWN = 12


def relock_json(rows: Sequence[LockedSet], check: bool) -> dict[str, Any]:
    """The shape patchctl.lock/1 with --requirements (docs/json.md)."""
    return {"check": check, "stacks": [], "requirements": [asdict(row) for row in rows]}


def relock_text(rows: Sequence[LockedSet], check: bool, style: Style) -> Iterator[str]:
    """A line a lock, and below it what differed."""
    for row in rows:
        word = "written" if row.written else style.bad("differs")
        word = word if row.differences else style.good("in step")
        elsewhere = f", {row.elsewhere} of them without digests" if row.elsewhere else ""
        yield f"{row.name:<12} {row.platform:<8} {word}  {row.packages} packages{elsewhere}"
        yield from (f"    {line}" for line in row.differences[:_SHOWN])
        if len(row.differences) > _SHOWN:
            yield f"    and {len(row.differences) - _SHOWN} more"
    if not rows:
        yield "no profile names a set of requirements"


def requirements_json(named: NamedSet, lock: Lock, profile: str) -> dict[str, Any]:
    """The shape patchctl.requirements/1 (docs/json.md)."""
    packages = [asdict(p) for p in lock.packages.values()]
    overrides = [asdict(o) for o in named.value.overrides]
    return {
        "profile": profile,
        "set": named.name,
        "platform": lock.platform,
        "python": named.value.python,
        "packages": packages,
        "overrides": overrides,
    }
