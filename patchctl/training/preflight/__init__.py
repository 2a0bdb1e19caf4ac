"""Whether a machine can run a recipe, as findings. Nothing is changed, but for caches that the user asks to be cleared.

live or recorded outputs -> Machine (texts) -> read (values) -> checks (findings). Checks are pure functions of a Machine, a
recipe and a profile, so that a recording from another machine gives what that machine would.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "wrong", "unknown"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `needed` says whether a run stops, or goes wrong, where it is not as it should be;
    `accepted` that the user goes on all the same."""

    area: str
    name: str
    level: Level
    what: str
    todo: str | None = None
    needed: bool = True
    accepted: bool = False

    @property
    def blocks(self) -> bool:
        """What is needed has to be known, too: nothing is taken for fine because nobody could look."""
        return self.needed and not self.accepted and self.level in ("wrong", "unknown")
