"""Finds the base of a series: the stack whose pin or last patch has the preimage blobs of the series."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from patchctl.doc import Doc
from patchctl.errors import PatchctlError, WrongUse
from patchctl.git.objects import Files
from patchctl.identify.lists import read_tree_list
from patchctl.importing.changes import Foreign, Section
from patchctl.importing.types import Options
from patchctl.manifest.diagnostics import quoted
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.lock import DamagedLock, read_lock
from patchctl.manifest.typeinfo import shape_of
from patchctl.manifest.types import Stack, StackName

_DEEPEST = 12
PinFiles = Callable[[Stack], Files]
"""The files of a stack's pin, where the distribution has no list of them. May raise SourceUnavailable."""


@dataclass(frozen=True)
class Candidate:
    """A stack that may be the base of a series."""

    upstream: Annotated[str, Doc("upstream name")]
    stack: Annotated[str, Doc("stack name")]
    wanted: Annotated[
        int, Doc("number of preimage blobs named in the mails, except those that the mails create", key="blobs")
    ]
    at_pin: Annotated[int, Doc("number of these blobs present at the pin")]
    at_tip: Annotated[int, Doc("number of these blobs present after the stack's last patch")]
    paths_wanted: Annotated[int, Doc("number of files that the patches read", key="paths")]
    paths: Annotated[int, Doc("number of these files present after the stack's last patch", key="paths_found")]
    base_commit: Annotated[bool, Doc("true if a mail's `base-commit:` is the pin", key="named_as_base")]

    @property
    def rank(self) -> tuple[int, int]:
        return max(self.at_pin, self.at_tip), self.paths

    @property
    def name(self) -> str:
        return f"{self.upstream}/{self.stack}"


@dataclass(frozen=True)
class Target:
    """The stack to write. `like` is the stack whose pin a new one takes; None for an existing stack."""

    stack: Stack
    like: Stack | None
    candidates: tuple[Candidate, ...]

    @property
    def is_new(self) -> bool:
        return self.like is not None


class NoBase(PatchctlError):
    """No stack, or more than one, matches the series."""

    code = 4
    kind = "does-not-apply"


def find_target(
    dist: Distribution, name: str | None, series: Sequence[Foreign], options: Options, pin_files: PinFiles
) -> Target:
    """Return the stack named `name`, as UPSTREAM/STACK, created if necessary; without a name, the one with all the blobs.

    Raises NoBase, WrongUse for an invalid name.
    """
    upstream, _, wanted = (name or "").partition("/")
    if name:
        dist.upstream(upstream)
    stacks = [s for (u, _), s in dist.stacks.items() if not name or u == upstream]
    found = _candidates(dist, stacks, series, options, pin_files)
    known = dist.stacks.get((upstream, wanted))
    if known is not None:
        return Target(known, None, found)
    best = _best(found, any_of_one_pin=bool(name), dist=dist)
    like = dist.stacks[best.upstream, best.stack]
    if not name:
        return Target(like, None, found)
    _check_name(wanted)
    extends = like.name if best.at_tip > best.at_pin else None
    return Target(replace(like, name=wanted, patches=[], extends=extends, replace={}, note=None), like, found)


def _check_name(name: str) -> None:
    if not shape_of(StackName).takes_text(name):
        raise WrongUse(f"{quoted(name)} is no name of a stack", hint="lower-case letters, digits, '.', '_', '-'")


def _best(found: Sequence[Candidate], any_of_one_pin: bool, dist: Distribution) -> Candidate:
    if not found:
        raise NoBase("there is no stack to lend a pin", hint="write its manifest first: docs/writing-patches.md")
    ranked = sorted(found, key=lambda c: c.rank, reverse=True)
    best = ranked[0]
    rivals = [c for c in ranked[1:] if c.rank == best.rank]
    if any_of_one_pin:
        pin = dist.stacks[best.upstream, best.stack].pin
        rivals = [c for c in rivals if dist.stacks[c.upstream, c.stack].pin != pin]
    table = "\n".join(f"  {line}" for line in (describe(c) for c in ranked[:10]))
    if best.rank == (0, 0):
        hint = "--stack UPSTREAM/STACK says where they belong; --strip or --map, where their paths have a prefix"
        raise NoBase(f"no stack has a file that these patches begin with\n{table}", hint=hint)
    if rivals:
        raise NoBase(f"several stacks have what these patches begin with\n{table}", hint="--stack UPSTREAM/STACK")
    return best


def describe(found: Candidate) -> str:
    """Return one line on how well a stack fits."""
    named = "; a mail names its commit as base" if found.base_commit else ""
    if not found.wanted:
        return f"{found.name}: {found.paths} of {found.paths_wanted} paths, the patches name no blobs{named}"
    where = f"{found.at_tip} of {found.wanted} preimage blobs behind its last patch, {found.at_pin} at its pin"
    return f"{found.name}: {where}{named}"


def _candidates(
    dist: Distribution, stacks: Sequence[Stack], series: Sequence[Foreign], options: Options, pin_files: PinFiles
) -> tuple[Candidate, ...]:
    named = {f.message.base_commit for f in series}
    found = []
    for stack in stacks:
        files = _pin_files(dist, stack, pin_files)
        if files is None:
            continue
        ids = {p: e.id for p, e in files.items()}
        last = {**ids, **_after_patches(dist, stack)}
        read = _preimages(series, ids, options)
        by_id = [s for s in read if s.old_id]
        found.append(
            Candidate(
                stack.upstream,
                stack.name,
                len(by_id),
                sum(1 for s in by_id if _has(s, ids, options)),
                sum(1 for s in by_id if _has(s, last, options)),
                len(read),
                sum(1 for s in read if _has_path(s, last, options)),
                stack.pin.identity in named,
            )
        )
    return tuple(sorted(found, key=lambda c: c.rank, reverse=True))


def _preimages(series: Sequence[Foreign], ids: Mapping[bytes, str], options: Options) -> list[Section]:
    """Return the sections that start from a file of the base, not from one written by an earlier patch of the series."""
    made: list[str] = []
    written: set[bytes] = set()
    found = []
    for section in (s for f in series for s in f.sections):
        own = section.old_id and any(m.startswith(section.old_id) or section.old_id.startswith(m) for m in made)
        path = next((p for p in _readings(section, options) if p in ids), None)
        if (section.moves or not section.is_new) and not own and path not in written:
            found.append(section)
        if section.new_id.strip("0"):
            made.append(section.new_id)
        if path is not None:
            written.add(path)
    return found


def _readings(section: Section, options: Options) -> list[bytes]:
    parts = [options.strip] if options.strip is not None else range(min(section.depth, _DEEPEST) + 1)
    return [p[0] for n in parts if (p := section.paths(n, options.maps))]


def _has(section: Section, ids: Mapping[bytes, str], options: Options) -> bool:
    return any(ids.get(p, "").startswith(section.old_id) for p in _readings(section, options))


def _has_path(section: Section, ids: Mapping[bytes, str], options: Options) -> bool:
    return any(p in ids for p in _readings(section, options))


def _pin_files(dist: Distribution, stack: Stack, pin_files: PinFiles) -> Files | None:
    listed = read_tree_list(dist.root, stack)
    if listed is not None:
        return listed.files
    try:
        return pin_files(stack)
    except PatchctlError:
        return None  # an unavailable stack is skipped; naming it explicitly reports the reason


def _after_patches(dist: Distribution, stack: Stack) -> dict[bytes, str]:
    """Return the ids of the files that a stack's patches change, from its lock; a deleted file has none."""
    try:
        lock = read_lock(dist.root, stack)
    except DamagedLock:
        return {}
    files = [f for p in (lock.patches if lock else ()) for f in p.files or ()]
    return {f.path.encode("utf-8", "surrogateescape"): f.after[1] if f.after else "" for f in files}
