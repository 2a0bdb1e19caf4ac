"""The verdicts of `drift`, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from patchctl.doc import Doc
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
    """One hunk."""

    line: Annotated[int, Doc("its line in the patch file")]
    at: Annotated[int, Doc("the line of the file that it is for")]
    state: Annotated[str, Doc("fits, moved, 3way, upstream or lost")]
    by: Annotated[int, Doc("by how many lines it moved")] = 0
    commit: Annotated[str | None, Doc("the upstream commit that took its lines away")] = None
    subject: Annotated[str | None, Doc("what that commit says")] = None


@dataclass(frozen=True)
class FileDrift:
    """A file of a patch on a release."""

    path: Annotated[str, Doc("in the stack's own base")]
    state: Annotated[str, Doc("as a patch's, or gone")]
    target: Annotated[str | None, Doc("where upstream has moved it")] = None
    hunks: Annotated[tuple[HunkDrift, ...], Doc("none of a carried file, and of one that is gone")] = ()


@dataclass(frozen=True)
class PatchDrift:
    """A patch on a release."""

    feature: Annotated[str, Doc("its feature")]
    patch: Annotated[str, Doc("its file")]
    state: Annotated[str, Doc("exact, moved, 3way, upstream, unknown (this source lacks a file of it) or conflict")]
    files: Annotated[tuple[FileDrift, ...], Doc("in the patch's order, carried files last")] = ()
    names: Annotated[tuple[ApiChange, ...], Doc("what it calls in this upstream and is not what it was")] = ()
    taken: Annotated[str | None, Doc("the release or commit in which upstream had it, and has changed it since")] = None
    proof: Annotated[str | None, Doc("why no record shows that it works on this release; null where one does")] = None
    dropped: Annotated[str | None, Doc("why the distribution's own stack of this release has left it out")] = None
    postponed: Annotated[str | None, Doc("why that stack does not have it yet")] = None
    broken: Annotated[bool, Doc("`--prove` ran its tests there, and they are red: `proof` says which")] = False

    @property
    def stale(self) -> Annotated[bool, Doc("it does not fit as it is, or calls what has changed")]:
        return self.state != EXACT or bool(self.names)

    @property
    def clean(self) -> Annotated[bool, Doc("nobody has to work on it")]:
        """Whether nobody has to work on it: it applies as it is, is proven there, or is not needed there."""
        return not self.stale or self.state == UPSTREAM or self.proof is None or self.dropped is not None


@dataclass(frozen=True)
class CallerDrift:
    """A patch of another upstream's stack that uses names of this release that changed."""

    upstream: Annotated[str, Doc("the patch's upstream")]
    stack: Annotated[str, Doc("the patch's stack")]
    feature: Annotated[str, Doc("its feature")]
    patch: Annotated[str, Doc("its file")]
    names: Annotated[tuple[ApiChange, ...], Doc("what it calls in the release's upstream and is not what it was")]
    proof: Annotated[
        str | None,
        Doc("why no record shows that it works with this release; null where one does, or it was left out beside it"),
    ] = None
    broken: Annotated[bool, Doc("as of a patch")] = False

    @property
    def name(self) -> str:
        return f"{self.feature}@{self.upstream}"


@dataclass(frozen=True)
class ReleaseDrift:
    """A stack on one release, and the patches of other stacks whose calls into it are stale."""

    release: Annotated[str, Doc("as it was asked for: a tag, a branch, a commit, a version")]
    form: Annotated[str, Doc("git or sdist")]
    commit: Annotated[str, Doc("its commit; in form sdist one that patchctl makes")]
    patches: Annotated[tuple[PatchDrift, ...], Doc("in stack order")]
    callers: Annotated[
        tuple[CallerDrift, ...],
        Doc("patches of other upstreams that call what is not as it was"),
    ] = ()


@dataclass(frozen=True)
class StackDrift:
    """A stack on all requested releases."""

    upstream: Annotated[str, Doc("its name")]
    stack: Annotated[str, Doc("the stack's name")]
    releases: Annotated[tuple[ReleaseDrift, ...], Doc("in the order walked")]
    unseen: Annotated[tuple[str, ...], Doc("`UPSTREAM/STACK: why` of each stack whose calls were not looked at")] = ()
    unavailable: Annotated[
        tuple[Tried, ...],
        Doc("the places tried for its own source, where none has it and nothing was looked at"),
    ] = ()


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
