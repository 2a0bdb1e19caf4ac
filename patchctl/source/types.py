"""The interface of this package: a base, in a bare repository of the cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, Protocol

from patchctl.doc import Doc
from patchctl.errors import SourceUnavailable
from patchctl.language import joined

Form = Literal["git", "sdist"]
FORMS: tuple[Form, ...] = ("git", "sdist")


@dataclass(frozen=True)
class Base:
    """An unpatched tree in the cache: a bare repository with one commit and all its objects in one pack.

    `commit` is the pin's own in form git, and a root commit made by patchctl in form sdist. `origin` is where the
    source came from, without credentials. `fetched_bytes` is 0 if it was cached.
    """

    upstream: Annotated[str, Doc("upstream name")]
    form: Annotated[Form, Doc("source form: `git` or `sdist`")]
    repo: Path
    commit: Annotated[str, Doc("base commit; created by patchctl for form `sdist`")]
    tree: Annotated[str, Doc("tree id of the commit")]
    origin: Annotated[str, Doc("where the source came from, without credentials")]
    fetched_bytes: int


class OfflineSource(Protocol):
    """One form of an upstream's pin in a file: its member's name, and in form git the commit."""

    @property
    def member(self) -> str: ...
    @property
    def commit(self) -> str | None: ...


class OfflineSources(Protocol):
    """A file with the sources of a profile, verified as a whole before use (patchctl.bundle implements it)."""

    @property
    def path(self) -> Path: ...

    def source(self, upstream: str, form: str) -> OfflineSource | None:
        """Return the source of an upstream in this form, or None."""

    def read(self, name: str) -> bytes:
        """Return the bytes of a member. Raises SourceMismatch if they changed since they were checked."""

    def sha256_of(self, name: str) -> str:
        """Return the digest of a member."""


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """How a run gets its sources.

    `mirrors` (upstream to addresses or local paths) come before the manifest's remotes; `refresh` ignores the cache
    and replaces what it has; a `bundle` comes before everything else.
    """

    source: Literal["auto", "git", "sdist"] = "auto"
    mirrors: Mapping[str, Sequence[str]] = field(default_factory=dict)
    offline: bool = False
    cache: Path
    refresh: bool = False
    bundle: OfflineSources | None = None


class SeveralUnavailable(SourceUnavailable):
    """Several upstreams without a source, each with the places tried."""

    def __init__(self, failures: Mapping[str, SourceUnavailable], *, hint: str | None = None) -> None:
        what = joined((f.what for f in failures.values()), "\n")
        super().__init__(what, [t for f in failures.values() for t in f.tried], hint=hint)
        self.failures = failures

    def text(self, shown: Callable[[str], str] = str) -> str:
        return "\n".join(f.text(shown) for f in self.failures.values())

    def as_json(self) -> dict[str, object]:
        tried = [
            {"upstream": n, "place": t.place, "reason": t.reason} for n, f in self.failures.items() for t in f.tried
        ]
        return {**super().as_json(), "tried": tried}


@dataclass(frozen=True)
class ArchiveLimits:
    """Limits for source distributions; the user's configuration can raise them (`archives:`).

    `ratio` is unpacked to packed, and applies above UNPACKED_FREE. The largest real one, vllm 0.14.1: 19 MiB packed,
    47 MiB unpacked, 1.5 MiB per file, 4,185 members, ratio 2.5 (verl 0.6.0: 5.0).
    """

    packed_mib: int = 256
    unpacked_mib: int = 1024
    file_mib: int = 64
    names: int = 100_000
    ratio: int = 100


@dataclass(frozen=True)
class ImageLimits:
    """Limits for the images that `image verify` reads; the user's configuration can raise them (`images:`).

    `unpacked_mib` and `names` count what is written of all layers together. `ratio` is a layer's unpacked size to its packed one, and
    applies above UNPACKED_FREE. A workspace with every stack: 299 MiB, 15,964 names.
    """

    unpacked_mib: int = 4096
    names: int = 500_000
    ratio: int = 100


@dataclass(frozen=True)
class Download:
    """An archive on disk, its origin (without credentials) and how many bytes were fetched."""

    path: Path
    origin: str
    size: int
