"""What the rest of the tool gets from this room: a base, in a bare repository of the cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, Protocol

from patchctl.doc import Doc
from patchctl.errors import SourceUnavailable

Form = Literal["git", "sdist"]
FORMS: tuple[Form, ...] = ("git", "sdist")


@dataclass(frozen=True)
class Base:
    """An unpatched tree in the cache: a bare repository with one commit and all of its objects in one pack.

    `commit` is the pin's own in form git, and a root commit that patchctl makes in form sdist. `origin` says where the
    source came from, without credentials. `fetched_bytes` is 0 when it came from the cache.
    """

    upstream: Annotated[str, Doc("its name")]
    form: Annotated[Form, Doc("git or sdist")]
    repo: Path
    commit: Annotated[str, Doc("the base's commit; in form sdist one that patchctl makes")]
    tree: Annotated[str, Doc("its tree")]
    origin: Annotated[str, Doc("where it came from")]
    fetched_bytes: int


class OfflineSource(Protocol):
    """One form of one upstream's pin in a file: the name of its member, and in form git the commit."""

    @property
    def member(self) -> str: ...
    @property
    def commit(self) -> str | None: ...


class OfflineSources(Protocol):
    """One file with the sources of a profile, found whole before anything of it is used: patchctl.bundle has it."""

    @property
    def path(self) -> Path: ...

    def source(self, upstream: str, form: str) -> OfflineSource | None:
        """The source of an upstream in this form, or None."""

    def read(self, name: str) -> bytes:
        """The bytes of a member. Raises SourceMismatch when they are no longer those that were checked."""

    def sha256_of(self, name: str) -> str:
        """The digest of a member."""


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """How a run wants its sources: `mirrors` (upstream to addresses or local paths) come before the manifest's remotes;
    `refresh` passes the cache by and puts what it gets there in its place; a `bundle` is asked before any other place.
    """

    source: Literal["auto", "git", "sdist"] = "auto"
    mirrors: Mapping[str, Sequence[str]] = field(default_factory=dict)
    offline: bool = False
    cache: Path
    refresh: bool = False
    bundle: OfflineSources | None = None


class SeveralUnavailable(SourceUnavailable):
    """Several upstreams that no place has, each with the places that were tried for it."""

    def __init__(self, failures: Mapping[str, SourceUnavailable], *, hint: str | None = None) -> None:
        what = "\n".join(f.what for f in failures.values())
        super().__init__(what, [t for f in failures.values() for t in f.tried], hint=hint)
        self.failures = failures

    def __str__(self) -> str:
        return "\n".join(str(f) for f in self.failures.values())

    def as_json(self) -> dict[str, object]:
        tried = [
            {"upstream": n, "place": t.place, "reason": t.reason} for n, f in self.failures.items() for t in f.tried
        ]
        return {**super().as_json(), "tried": tried}


@dataclass(frozen=True)
class ArchiveLimits:
    """What a source distribution may be at most; a user's configuration raises it (`archives:`).

    `ratio` is unpacked to packed, and counts from UNPACKED_FREE on. The largest real one, vllm 0.14.1: 19 MiB packed, 47 MiB
    unpacked, 1.5 MiB a file, 4,185 members, ratio 2.5 (verl 0.6.0: 5.0).
    """

    packed_mib: int = 256
    unpacked_mib: int = 1024
    file_mib: int = 64
    names: int = 100_000
    ratio: int = 100


@dataclass(frozen=True)
class Download:
    """An archive on the disk, where it came from (without credentials) and how many bytes were fetched for it."""

    path: Path
    origin: str
    size: int
