"""The verdicts of `drift`, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from patchctl.drift.api_diff import ApiChange
from patchctl.errors import Tried

# From best to worst. `upstream`: upstream has the change by now; `unknown`: this source lacks the file.
EXACT, MOVED, THREE_WAY, UPSTREAM, UNKNOWN, GONE, CONFLICT = (
    "exact",
    "moved",
    "3way",
    "upstream",
    "unknown",
    "gone",
    "conflict",
)
ARRIVES = (EXACT, MOVED, THREE_WAY, UPSTREAM)
FITS, LOST = "fits", "lost"


@dataclass(frozen=True)
class HunkDrift:
    """One hunk: its line in the patch file, the line of the old file, and `fits`, `moved` (by so many lines), `3way`, `upstream` or
    `lost`. `commit` is the upstream commit that removed its lines, `subject` that commit's."""

    line: int
    at: int
    state: str
    by: int = 0
    commit: str | None = None
    subject: str | None = None


@dataclass(frozen=True)
class FileDrift:
    """A file of a patch on a release. `target` is where upstream moved it."""

    path: str
    state: str
    target: str | None = None
    hunks: tuple[HunkDrift, ...] = ()


@dataclass(frozen=True)
class PatchDrift:
    """A patch on a release: exact (it applies), moved, 3way, upstream (nothing is left of it), unknown (this source lacks a file of
    it) or conflict. `taken`: the release that took it, if a later one rewrote it. `names`: upstream names that it uses and that
    changed. `proof`: why no record of this release's stack proves it, or None. `dropped`, `postponed`: why that stack lacks it.
    `broken`: its tests ran there and are red."""

    feature: str
    patch: str
    state: str
    files: tuple[FileDrift, ...] = ()
    names: tuple[ApiChange, ...] = ()
    taken: str | None = None
    proof: str | None = None
    dropped: str | None = None
    postponed: str | None = None
    broken: bool = False

    @property
    def stale(self) -> bool:
        return self.state != EXACT or bool(self.names)

    @property
    def clean(self) -> bool:
        """Whether nobody has to work on it: it applies as it is, is proven there, or is not needed there."""
        return not self.stale or self.state == UPSTREAM or self.proof is None or self.dropped is not None


@dataclass(frozen=True)
class CallerDrift:
    """A patch of another upstream's stack that uses names of this release that changed. `proof`: why no record shows that it works
    with this release; None if one does, or if the patch was dropped there."""

    upstream: str
    stack: str
    feature: str
    patch: str
    names: tuple[ApiChange, ...]
    proof: str | None = None
    broken: bool = False

    @property
    def name(self) -> str:
        return f"{self.feature}@{self.upstream}"


@dataclass(frozen=True)
class ReleaseDrift:
    """A stack on one release, and the patches of other stacks whose calls into it are stale."""

    release: str
    form: str
    commit: str
    patches: tuple[PatchDrift, ...]
    callers: tuple[CallerDrift, ...] = ()


@dataclass(frozen=True)
class StackDrift:
    """A stack on all requested releases. `unseen`: stacks whose calls were not checked, and why. `unavailable`: the places tried for
    this stack's own source, if none has it and nothing was checked."""

    upstream: str
    stack: str
    releases: tuple[ReleaseDrift, ...]
    unseen: tuple[str, ...] = ()
    unavailable: tuple[Tried, ...] = ()


def patch_from_json(data: Mapping[str, object]) -> PatchDrift:
    """A patch as `asdict` writes it. Raises KeyError, TypeError, ... for wrong data."""
    rows = data["files"]
    names = data["names"]
    assert isinstance(rows, list) and isinstance(names, list)
    files = tuple(FileDrift(**{**r, "hunks": tuple(HunkDrift(**h) for h in r["hunks"])}) for r in rows)
    return PatchDrift(**{**data, "files": files, "names": tuple(ApiChange(**n) for n in names)})  # type: ignore[arg-type]


def caller_from_json(data: Mapping[str, object]) -> CallerDrift:
    """`patch_from_json` for a caller."""
    names = data["names"]
    assert isinstance(names, list)
    return CallerDrift(**{**data, "names": tuple(ApiChange(**n) for n in names)})  # type: ignore[arg-type]
