"""The verdicts of `drift`, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from patchctl.doc import Doc
from patchctl.drift.api_diff import ApiChange
from patchctl.errors import Tried

# From best to worst. `upstream`: upstream now has the change; `unknown`: this source lacks the file.
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
NO_STACK = "the distribution has no stack of this revision"


@dataclass(frozen=True)
class HunkDrift:
    """A hunk on a release."""

    line: Annotated[int, Doc("line of the hunk in the patch file")]
    at: Annotated[int, Doc("line in the target file")]
    state: Annotated[str, Doc("`fits`, `moved`, `3way`, `upstream` or `lost`")]
    by: Annotated[int, Doc("offset in lines")] = 0
    commit: Annotated[str | None, Doc("upstream commit that removed the hunk's lines")] = None
    subject: Annotated[str | None, Doc("subject of that commit")] = None


@dataclass(frozen=True)
class FileDrift:
    """A file of a patch on a release."""

    path: Annotated[str, Doc("path in the stack's own base")]
    state: Annotated[str, Doc("state as of the patch, or `gone`")]
    target: Annotated[str | None, Doc("new path if upstream renamed the file")] = None
    hunks: Annotated[tuple[HunkDrift, ...], Doc("hunks; empty for a carried or missing file")] = ()


@dataclass(frozen=True)
class PatchDrift:
    """A patch on a release."""

    feature: Annotated[str, Doc("feature name")]
    patch: Annotated[str, Doc("patch file")]
    state: Annotated[
        str, Doc("`exact`, `moved`, `3way`, `upstream`, `unknown` (this source lacks one of the files) or `conflict`")
    ]
    files: Annotated[tuple[FileDrift, ...], Doc("files in patch order, carried files last")] = ()
    names: Annotated[tuple[ApiChange, ...], Doc("upstream names that the patch uses and that changed")] = ()
    taken: Annotated[
        str | None, Doc("release or commit in which upstream had the change before modifying it further")
    ] = None
    proof: Annotated[str | None, Doc("why no record proves the patch on this release; null if one does")] = None
    dropped: Annotated[str | None, Doc("why the distribution's own stack for this release drops the patch")] = None
    postponed: Annotated[str | None, Doc("why that stack does not include the patch yet")] = None
    broken: Annotated[bool, Doc("true if its tests failed under `--prove`; `proof` names them")] = False

    @property
    def stale(self) -> Annotated[bool, Doc("true if the patch does not apply as is, or uses names that changed")]:
        return self.state != EXACT or bool(self.names)

    @property
    def clean(self) -> Annotated[bool, Doc("true if the patch needs no manual work")]:
        """Whether no manual work is needed: it applies as is, is proven there, or is not needed there."""
        return not self.stale or self.state == UPSTREAM or self.proof is None or self.dropped is not None


@dataclass(frozen=True)
class CallerDrift:
    """A patch of another upstream's stack that uses names of this release that changed."""

    upstream: Annotated[str, Doc("upstream of the patch")]
    stack: Annotated[str, Doc("stack of the patch")]
    feature: Annotated[str, Doc("feature name")]
    patch: Annotated[str, Doc("patch file")]
    names: Annotated[tuple[ApiChange, ...], Doc("names in the release's upstream that the patch uses and that changed")]
    proof: Annotated[
        str | None,
        Doc("why no record proves the patch with this release; null if one does, or if the patch is left out on it"),
    ] = None
    broken: Annotated[bool, Doc("as for a patch")] = False

    @property
    def name(self) -> str:
        return f"{self.feature}@{self.upstream}"


@dataclass(frozen=True)
class ReleaseDrift:
    """A stack on a release, with the patches of other stacks whose calls into it are stale."""

    release: Annotated[str, Doc("requested tag, branch, commit or version")]
    form: Annotated[str, Doc("source form: `git` or `sdist`")]
    commit: Annotated[str, Doc("commit of the release; created by patchctl for form `sdist`")]
    patches: Annotated[tuple[PatchDrift, ...], Doc("patches, in stack order")]
    callers: Annotated[
        tuple[CallerDrift, ...], Doc("patches of other upstreams that use changed names of this one")
    ] = ()


@dataclass(frozen=True)
class StackDrift:
    """A stack on all requested releases."""

    upstream: Annotated[str, Doc("upstream name")]
    stack: Annotated[str, Doc("stack name")]
    releases: Annotated[tuple[ReleaseDrift, ...], Doc("releases, in the order walked")]
    unseen: Annotated[tuple[str, ...], Doc("stacks whose calls were not checked, as `UPSTREAM/STACK: why`")] = ()
    unavailable: Annotated[
        tuple[Tried, ...], Doc("sources tried for the stack's own base, if none has it; nothing was checked then")
    ] = ()
