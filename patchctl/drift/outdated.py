"""Revisions of upstreams newer than the pins, and the effort of moving a stack there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

from packaging.version import InvalidVersion, Version

from patchctl.doc import Doc
from patchctl.drift.drift import Drifting
from patchctl.drift.types import ARRIVES, EXACT, MOVED, UPSTREAM, ReleaseDrift
from patchctl.errors import SourceUnavailable, Tried
from patchctl.git.catfile import ObjectReader
from patchctl.manifest.types import Stack, Upstream
from patchctl.source.upstream_releases import RevisionTree, UpstreamRelease

BRANCH = "branch"
CONFLICTS, TAKEN = "conflicts", "taken upstream"


@dataclass(frozen=True)
class NewRevision:
    """A revision that is newer than the pin."""

    kind: Annotated[str, Doc("`release`, `candidate`, or `branch` (head of the tracked branch)")]
    name: Annotated[str, Doc("tag, version or branch name")]
    effort: Annotated[str | None, Doc("`exact`, `moved`, `conflicts` or `taken upstream`; null with `--no-drift`")] = (
        None
    )
    work: Annotated[tuple[str, ...], Doc("features that need manual work on the revision")] = ()
    archived: Annotated[bool, Doc("true if the package index has it and no repository that could be asked")] = False


@dataclass(frozen=True)
class Companion:
    """The revision of another upstream that the pinned files name."""

    upstream: Annotated[str, Doc("name of the other upstream")]
    revision: Annotated[str, Doc("tag or branch")]
    pinned: Annotated[bool | None, Doc("true if its stack is pinned to that revision; null if no source could tell")]


@dataclass(frozen=True)
class OutdatedStack:
    """A stack, revisions newer than its pin, and the revisions of other upstreams that its own files ask for."""

    upstream: Annotated[str, Doc("upstream name")]
    stack: Annotated[str, Doc("stack name")]
    patches: Annotated[int, Doc("number of patches")]
    newer: Annotated[tuple[NewRevision, ...], Doc("newest revision of each kind; empty if the pin is up to date")] = ()
    hidden: Annotated[
        Mapping[str, str],
        Doc("newer versions that do not support the release's Python, with the Python versions they support"),
    ] = field(default_factory=dict)
    companions: Annotated[tuple[Companion, ...], Doc("revisions of other upstreams named in the pinned files")] = ()
    unavailable: Annotated[tuple[Tried, ...], Doc("sources tried, if one that is needed could not be had")] = ()


def outdated(
    drifting: Drifting, stacks: Sequence[Stack], python: str | None, *, drift: bool = True
) -> list[OutdatedStack]:
    """Compare the pin of each stack, one per upstream, with the newest revisions of its upstream.

    `python` is the release's Python version, such as "3.12". Without `drift`, no patch is tried and no source is
    fetched. Raises SourceUnavailable if no source of any upstream can be queried.
    """
    of = {s.upstream: s for s in stacks}
    named = {s.upstream: named_by(drifting, s) if drift else {} for s in stacks}
    followed = {u: revision for said in named.values() for u, revision in said.items()}
    found, missing = [], list[SourceUnavailable]()
    for stack in stacks:
        patches = len(drifting.dist.patches(stack))
        try:
            releases = drifting.releases_of(stack)
            newest, branch = releases.newest(python), followed.get(stack.upstream)
            kinds = {**newest.by_kind}
            if branch and not releases.is_older(branch) and is_pinned(drifting, stack, branch) is False:
                kinds.setdefault(BRANCH, branch)
            head = releases.commit_of(stack.name) if stack.pin.commit and not stack.pin.tag else None
            if head not in (None, stack.pin.commit):  # the branch that it is pinned on has moved on
                kinds.setdefault(BRANCH, stack.name)
            has_repository = drifting.dist.upstream(stack.upstream).git or drifting.options.mirrors.get(stack.upstream)
            archived = newest.archived if has_repository else ()
            newer = tuple(NewRevision(kind, name, archived=name in archived) for kind, name in kinds.items())
            tried = list[Tried]()
            if drift and newer:
                try:
                    drifts = drifting.stack(stack, [one.name for one in newer]).releases
                    pairs = zip(newer, drifts, strict=True)
                    newer = tuple(replace(one, effort=effort(d), work=tuple(_work(d))) for one, d in pairs)
                except SourceUnavailable as error:  # what is newer is known all the same
                    tried = error.tried
            companions = tuple(
                Companion(u, revision, is_pinned(drifting, of[u], revision))
                for u, revision in named[stack.upstream].items()
                if u in of
            )
            row = OutdatedStack(stack.upstream, stack.name, patches, newer, newest.hidden, companions, tuple(tried))
            found.append(row)
        except SourceUnavailable as error:
            missing.append(error)
            found.append(OutdatedStack(stack.upstream, stack.name, patches, unavailable=tuple(error.tried)))
        finally:
            drifting.progress.finish()
    if missing and len(missing) == len(found):
        raise missing[0]
    return found


def named_by(drifting: Drifting, stack: Stack, revision: str | None = None) -> Mapping[str, str]:
    """Return the revisions of other upstreams named in the files of a revision [default: the pin]; empty if it is unavailable."""
    upstream, releases = drifting.dist.upstream(stack.upstream), drifting.releases_of(stack)
    if upstream.companions is None:
        return {}
    try:
        return companions_of(upstream, releases.base() if revision is None else releases.named([revision])[0])
    except SourceUnavailable:
        return {}


def companions_of(upstream: Upstream, release: UpstreamRelease) -> Mapping[str, str]:
    """Return the revisions of other upstreams that the files of a release name; empty if it lacks the file."""
    said = upstream.companions
    if said is None:
        return {}
    with ObjectReader(release.repo) as reader:
        tree = RevisionTree(reader, release.tree)
        files = [path.decode("utf-8", "replace") for path in tree.files]
        fitting = sorted((path for path in files if re.fullmatch(said.file, path)), key=_numbers)
        text = (tree.text(fitting[-1]) or b"").decode("utf-8", "replace") if fitting else ""
    matches = {name: re.search(expression, text) for name, expression in said.revisions.items()}
    return {name: match[1] for name, match in matches.items() if match}


def _numbers(path: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", path)]


def pinned_as(stack: Stack) -> str:
    """The pin as a person names it."""
    return stack.pin.tag or stack.name


def is_same(one: str, other: str) -> bool:
    """Whether two names mean one release: v1.2.0 is 1.2.0, and core_r1.2.0."""
    return one == other or _version_in(one) == _version_in(other) is not None


def _version_in(name: str) -> Version | None:
    """The version that a name ends with."""
    digits = re.search(r"\d.*", name)
    try:
        return Version(digits[0]) if digits else None
    except InvalidVersion:
        return None


def is_pinned(drifting: Drifting, stack: Stack, revision: str) -> bool | None:
    """Whether a stack is pinned to the head of this tag or branch."""
    if is_same(revision, pinned_as(stack)):
        return True
    commit = drifting.releases_of(stack).commit_of(revision)
    return None if commit is None else commit == stack.pin.commit


def _work(drift: ReleaseDrift) -> list[str]:
    """The features that someone has to work on."""
    return [p.feature for p in drift.patches if p.state not in ARRIVES and not p.clean]


def effort(drift: ReleaseDrift) -> str:
    """Summarise in one word what a release takes: exact, moved, conflicts or taken upstream."""
    if _work(drift):
        return CONFLICTS
    if drift.patches and all(p.state == UPSTREAM for p in drift.patches):
        return TAKEN
    return EXACT if not any(p.stale for p in drift.patches) else MOVED
