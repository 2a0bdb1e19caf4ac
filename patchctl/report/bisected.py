"""What `bisect` found, as text and as JSON. Computes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from patchctl.terminal.text import visible_line

if TYPE_CHECKING:
    from patchctl.blame.bisect import Bisected, Tried, Unit
    from patchctl.manifest.types import Profile
    from patchctl.terminal.style import Style

_REASONS = {
    "good": "the command succeeds with every patch, or cannot be told: there is nothing to look for",
    "base": "the command does not succeed without any patch: no patch broke it",
}


def bisect_json(found: Bisected, profile: Profile) -> dict[str, Any]:
    """The shape patchctl.bisect/1 (docs/json.md)."""
    return {
        "profile": profile.name,
        "set": profile.set,
        "order": [_unit(u) for u in found.order],
        "tried": [asdict(t) for t in found.tried],
        "broken": [_unit(u) for u in found.broken],
        "reason": found.reason,
    }


def _unit(unit: Unit) -> list[str]:
    return [f"{feature}@{upstream}" for upstream, feature in unit.patches]


def step_text(step: Tried, units: int) -> str:
    """One run, as it ended."""
    return f"{step.applied} of {units} patches: {step.outcome} (exit code {step.code}, {step.seconds:.1f} s)"


def bisect_text(found: Bisected, style: Style) -> Iterator[str]:
    """The patch, or why there is none."""
    if found.reason is not None:
        yield style.note(_REASONS[found.reason])
        return
    for unit in found.broken:
        yield f"{style.bad('broken by')} {visible_line(' and '.join(_unit(unit)))}"
    if len(found.broken) > 1:
        yield "runs between them were skipped: it is one of these"
    yield f"found in {len(found.tried)} runs over {len(found.order)} patches"
