"""The verdicts of `drift`, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from patchctl.drift.api_diff import Changed
from patchctl.errors import Tried

# From the best to the worst; `upstream` is what upstream has by now, `unknown` what this source does not hold.
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
    """One hunk: its line in the patch file, the line of the old file that it is for, and `fits`, `moved` (by so many lines),
    `3way`, `upstream` or `lost`. `commit` is the upstream one that took its lines away, `subject` what that says."""

    line: int
    at: int
    state: str
    by: int = 0
    commit: str | None = None
    subject: str | None = None


@dataclass(frozen=True)
class FileDrift:
    """A file of a patch on a release. `target` is where upstream has moved it."""

    path: str
    state: str
    target: str | None = None
    hunks: tuple[HunkDrift, ...] = ()


@dataclass(frozen=True)
class PatchDrift:
    """A patch on a release: exact (the stack function takes it), moved, 3way, upstream (nothing is left of it), unknown (this
    source lacks a file of it) or conflict. `taken` is the release in which upstream had it, where a later one wrote that anew;
    `names` what it calls there and is no longer what it was; `proof` None where a record of this release's stack holds, `dropped`
    why that stack has left it out, `postponed` why it does not have it yet; `broken` where its tests were run there and are red."""

    feature: str
    patch: str
    state: str
    files: tuple[FileDrift, ...] = ()
    names: tuple[Changed, ...] = ()
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
        """Whether nobody has to work on it: it is proven there, by itself or as somebody made it anew, or not needed there."""
        return not self.stale or self.state == UPSTREAM or self.proof is None or self.dropped is not None


@dataclass(frozen=True)
class CallerDrift:
    """A patch of another upstream's stack that calls what is not here as it was. `proof` is why nothing shows that it works with
    this release; None where a record of trees with it does, or where it was left out beside it."""

    upstream: str
    stack: str
    feature: str
    patch: str
    names: tuple[Changed, ...]
    proof: str | None = None
    broken: bool = False

    @property
    def name(self) -> str:
        return f"{self.feature}@{self.upstream}"


@dataclass(frozen=True)
class ReleaseDrift:
    """A stack on one release, and what of other stacks calls into it and is stale there."""

    release: str
    form: str
    commit: str
    patches: tuple[PatchDrift, ...]
    callers: tuple[CallerDrift, ...] = ()


@dataclass(frozen=True)
class StackDrift:
    """A stack on all releases that were asked for. `unseen` names the stacks whose calls were not looked at, and why; `unavailable`
    the places that were tried for this stack's own source, where none has it and nothing of it was looked at."""

    upstream: str
    stack: str
    releases: tuple[ReleaseDrift, ...]
    unseen: tuple[str, ...] = ()
    unavailable: tuple[Tried, ...] = ()


def patch_from_json(data: Mapping[str, object]) -> PatchDrift:
    """A patch as `asdict` writes it. Raises what wrong data leads to."""
    rows = data["files"]
    names = data["names"]
    assert isinstance(rows, list) and isinstance(names, list)
    files = tuple(FileDrift(**{**r, "hunks": tuple(HunkDrift(**h) for h in r["hunks"])}) for r in rows)
    return PatchDrift(**{**data, "files": files, "names": tuple(Changed(**n) for n in names)})  # type: ignore[arg-type]


def caller_from_json(data: Mapping[str, object]) -> CallerDrift:
    """The same of a caller."""
    names = data["names"]
    assert isinstance(names, list)
    return CallerDrift(**{**data, "names": tuple(Changed(**n) for n in names)})  # type: ignore[arg-type]
