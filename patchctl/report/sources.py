"""What `fetch` prints, as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from patchctl.doc import Doc, Spread
from patchctl.source.types import Base
from patchctl.stack.plan import Skipped


@dataclass(frozen=True)
class FetchedSource:
    """A base that is in the cache now."""

    base: Annotated[Base, Spread()]
    from_cache: Annotated[bool, Doc("nothing was fetched")]
    bytes: Annotated[int, Doc("how many were")]
    objects: Annotated[int, Doc("how many objects were read back and found right")]
    seconds: Annotated[float, Doc("how long it took")]


@dataclass(frozen=True)
class FetchOutput:
    """What `fetch` prints."""

    profile: Annotated[str, Doc("the profile")]
    root: Annotated[Path, Doc("the distribution: with `--bundle` where the bundle's was put")]
    sources: Annotated[Sequence[FetchedSource], Doc("in the order of upstreams.yaml")]
    skipped: Annotated[Sequence[Skipped], Doc("with `--skip-unavailable`")]
