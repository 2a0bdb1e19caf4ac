"""JSON output of `use`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from patchctl.doc import Doc, Spread
from patchctl.manifest.default_roots import Used


@dataclass(frozen=True)
class UsedRow:
    """A distribution that `use` fetched."""

    used: Annotated[Used, Spread()]
    root: Annotated[Path, Doc("folder with its files")]
    default: Annotated[bool, Doc("true if runs outside a distribution take it")]


@dataclass(frozen=True)
class UseOutput:
    """What `use` prints."""

    distributions: Annotated[Sequence[UsedRow], Doc("fetched distributions, sorted by commit")]
    default: Annotated[Path | None, Doc("folder that runs outside a distribution take, or null if there is none")]
    fetched: Annotated[bool, Doc("true if this run fetched the default")]
