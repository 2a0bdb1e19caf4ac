"""JSON output of `fetch` and `use`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from patchctl.doc import Doc, Spread
from patchctl.manifest.default_roots import Used
from patchctl.source.types import Base
from patchctl.stack.plan import Skipped


@dataclass(frozen=True)
class FetchedSource:
    """A base that is now in the cache."""

    base: Annotated[Base, Spread()]
    from_cache: Annotated[bool, Doc("true if it was cached and nothing was fetched")]
    bytes: Annotated[int, Doc("number of bytes fetched")]
    objects: Annotated[int, Doc("number of objects read back and verified")]
    seconds: Annotated[float, Doc("duration in seconds")]


@dataclass(frozen=True)
class FetchOutput:
    """What `fetch` prints."""

    profile: Annotated[str, Doc("profile name")]
    root: Annotated[Path, Doc("distribution folder; with `--bundle`, the folder that the bundle was unpacked to")]
    sources: Annotated[Sequence[FetchedSource], Doc("bases, in the order of upstreams.yaml")]
    skipped: Annotated[Sequence[Skipped], Doc("with `--skip-unavailable`: unavailable upstreams")]


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
