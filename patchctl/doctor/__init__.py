"""What this machine lacks, as findings. Nothing is installed, downloaded or changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from patchctl.errors import Tried

Level = Literal["ok", "missing", "warning"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `area` is machine, sources, tests or runtime; `needed` says whether patchctl itself
    cannot do its work without it; `todo` is what to do about it, `tried` the places that did not have it."""

    area: str
    name: str
    level: Level
    what: str
    todo: str | None = None
    needed: bool = True
    tried: tuple[Tried, ...] = ()

    @property
    def blocks(self) -> bool:
        """Whether something that is needed is missing."""
        return self.level == "missing" and self.needed
