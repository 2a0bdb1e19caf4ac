"""From a profile to finished stacks: patches read, features selected, sources obtained, the stack function evaluated.

Nothing here writes outside the cache, so that a failure anywhere leaves every tree as it was.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from patchctl.doc import Doc
from patchctl.errors import BadManifest, SourceUnavailable, Tried, Where
from patchctl.git.catfile import ObjectReader
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.lock import Lock, LockedForm, lock_file, pin_record, read_lock
from patchctl.manifest.types import Profile, Stack
from patchctl.source.obtain import BUNDLE_HINT, obtain, obtain_form
from patchctl.source.types import Base, Form, SeveralUnavailable, SourceOptions
from patchctl.stack.memo import StackResult, memo_key, note_parsed, parsed_before, recall, remember
from patchctl.stack.patches import StackPatch, load_patch, load_unparsed, parsed
from patchctl.stack.select import Omission, check_name, check_requirements, dependents, leave_out
from patchctl.terminal.progress import Progress

NO_PATCHES = "its upstream is skipped"


@dataclass(frozen=True)
class Selection:
    """A profile's stacks with their patches, and what is left out of them because the profile or the user says so."""

    profile: Profile
    stacks: Mapping[str, Stack]
    patches: Mapping[str, Sequence[StackPatch]]
    omitted: Sequence[Omission]


@dataclass(frozen=True)
class InstalledPackage:
    """A package that is to be patched where an installer put it: its RECORD, below the folder, and the files that this
    lists. What upstream's build leaves out of the package no patch can change there."""

    folder: Path
    record: str
    files: frozenset[bytes]


@dataclass(frozen=True)
class AppliedStack:
    """A stack that is applied already: what it would take to say that a plan makes the same of it."""

    stack: str
    form: str
    tip_commit: str
    patches: tuple[tuple[str, str], ...]
    left_out: frozenset[str]


@dataclass(frozen=True)
class Standing:
    """What a plan finds at the places that it is for, by upstream."""

    installed: Mapping[str, InstalledPackage] = field(default_factory=dict)
    applied: Mapping[str, AppliedStack] = field(default_factory=dict)


@dataclass(frozen=True)
class PlannedStack:
    """One upstream's finished stack. `locked` says whether the lock promises exactly this result; `record` names the
    RECORD of a package that is patched where it is installed."""

    upstream: str
    stack: Stack
    base: Base
    result: StackResult
    omitted: tuple[Omission, ...]
    locked: bool
    record: str | None = None


@dataclass(frozen=True)
class Skipped:
    """An upstream that could not be had."""

    upstream: Annotated[str, Doc("its name")]
    tried: Annotated[tuple[Tried, ...], Doc("every place and why it did not do", pairs=True)]


@dataclass(frozen=True)
class Plan:
    """What an apply is going to materialise. `kept` could not be had now, and is applied as it shall be already."""

    profile: Profile
    without: tuple[str, ...]
    stacks: tuple[PlannedStack, ...]
    skipped: tuple[Skipped, ...]
    kept: tuple[Skipped, ...] = ()


def select(dist: Distribution, profile: Profile, without: Iterable[str], cache: Path | None = None) -> Selection:
    """Read the patches of a profile and settle what is left out. Raises BadPatch, WrongUse; needs no source. What `cache`
    knows to have been parsed is not parsed again before somebody asks for it."""
    stacks = dist.stacks_of(profile)
    patches = {u: load_patches(dist, s, cache) for u, s in stacks.items()}
    for patch in (p for series in patches.values() for p in series):
        check_name(patch)
    omitted = leave_out(patches, profile.without, f"the profile {profile.name} leaves it out")
    seen = {id(o.patch) for o in omitted}
    omitted += [o for o in leave_out(patches, without, "left out with --without") if id(o.patch) not in seen]
    check_requirements(patches, omitted, profile.stacks)
    return Selection(profile, stacks, patches, omitted)


def load_patches(dist: Distribution, stack: Stack, cache: Path | None = None) -> list[StackPatch]:
    """The patches of a stack, read and parsed, in order; with `cache` as `select` says."""
    files = dist.patch_files(stack)
    if cache is None:
        return [load_patch(file, dist.root) for file in files]
    found = [load_unparsed(file, dist.root) for file in files]
    if not parsed_before(cache, found):
        found = [parsed(one) for one in found]
        note_parsed(cache, found)
    return found


def make_plan(
    dist: Distribution,
    selection: Selection,
    options: SourceOptions,
    progress: Progress,
    *,
    without: Sequence[str] = (),
    skip_unavailable: bool = False,
    standing: Standing | None = None,
) -> Plan:
    """Obtain every source and build every stack. Raises SourceUnavailable unless `skip_unavailable` lists them instead;
    where there is nothing to go on with, in any case: a plan of nothing would be taken for a profile. What is applied
    already is never given up for a source that is gone: it stays, or, where the plan wants another tree, this raises."""
    found = standing or Standing()
    bases, skipped, kept = _obtain_all(dist, selection, options, progress, skip_unavailable, found)
    omitted = list(selection.omitted)
    omitted += _unavailable(dist, selection, bases, options, progress, skip_unavailable, found, kept)
    gone = [Omission(s.upstream, p, NO_PATCHES) for s in skipped for p in selection.patches[s.upstream]]
    gone += [
        Omission(s.upstream, p, NO_PATCHES)
        for s in kept
        for p in selection.patches[s.upstream]
        if p.feature in found.applied[s.upstream].left_out
    ]
    omitted += dependents(selection.patches, [*omitted, *gone])
    planned = []
    for upstream, base in bases.items():
        progress.note(f"building {upstream}")
        own = tuple(o for o in omitted if o.upstream == upstream)
        stack = selection.stacks[upstream]
        result = build_stack(base, selection.patches[upstream], [o.patch for o in own], options.cache)
        lock = read_lock(dist.root, stack)
        locked = check_against_lock(dist.root, stack, lock, base, result, selection.patches[upstream], own)
        package = found.installed.get(upstream)
        record = package.record if package else None
        planned.append(PlannedStack(upstream, stack, base, result, own, locked, record))
    return Plan(selection.profile, tuple(without), tuple(planned), tuple(skipped), tuple(kept))


def build_stack(base: Base, patches: Sequence[StackPatch], left_out: Sequence[StackPatch], cache: Path) -> StackResult:
    """The stack function on a base of the cache; its value is remembered there."""
    key = memo_key(base.commit, patches, left_out)
    if (known := recall(cache, key, patches, left_out)) is not None:
        return known
    from patchctl.stack.build import StackBuilder

    with ObjectReader(base.repo) as reader:
        built = StackBuilder(reader, base.commit, base.tree).build(patches, left_out)
    return remember(cache, key, built)


def check_against_lock(
    root: Path,
    stack: Stack,
    lock: Lock | None,
    base: Base,
    result: StackResult,
    patches: Sequence[StackPatch],
    omitted: Sequence[Omission],
) -> bool:
    """Whether the lock promises this result. Raises BadManifest when it promises another one; False when it is silent."""
    if lock is None:
        return False
    where = Where(str(lock_file(root, stack.upstream, stack.name)))
    hint = "see what changed with `patchctl lock --check`; `patchctl lock` writes it anew"
    if lock.pin != pin_record(stack.pin):
        raise BadManifest("the lock is for another pin", where=where, hint=hint)
    digests = [(p.file, p.digest) for p in lock.patches]
    if digests != [(p.file.name, p.digest) for p in patches]:
        changed = next((p.file.name for p in patches if (p.file.name, p.digest) not in digests), "the list of patches")
        raise BadManifest(f"the lock is for other patches: {changed} differs", where=where, hint=hint)
    expected = lock.expected(base.form, frozenset(o.patch.feature for o in omitted))
    if expected is None:
        return False
    have = LockedForm(result.base_commit, result.base_tree, result.tip_commit, result.tip_tree, expected.unavailable)
    if have != expected:
        raise BadManifest(
            f"{stack.upstream} ({base.form}) gives tree {have.tip_tree}, the lock promises {expected.tip_tree}",
            where=where,
            hint=hint,
        )
    return True


def _obtain_all(
    dist: Distribution,
    selection: Selection,
    options: SourceOptions,
    progress: Progress,
    skip: bool,
    standing: Standing,
) -> tuple[dict[str, Base], list[Skipped], list[Skipped]]:
    """The bases, and of those that could not be had the ones that are skipped, and those that stay as they are applied."""
    bases: dict[str, Base] = {}
    failures: dict[str, SourceUnavailable] = {}
    for upstream, stack in selection.stacks.items():
        try:
            bases[upstream] = _obtain(dist, upstream, stack, options, progress, standing)
        except SourceUnavailable as failure:
            failures[upstream] = failure
    kept = {u for u in failures if skip and u in standing.applied and _stays(dist, selection, u, standing.applied[u])}
    if failures and not (skip and (bases or kept)):
        raise _together(failures, some=bool(bases))
    lost = {u: f for u, f in failures.items() if u in standing.applied and u not in kept}
    if lost:
        hint = "give their sources, or `patchctl revert` first: an apply gives up no tree for a source that is gone"
        what = f"{', '.join(lost)}: another tree is applied than is asked for, and no source could be had\n"
        raise SourceUnavailable(what + "\n".join(f.what for f in lost.values()), _tried(lost), hint=hint)
    rows = [Skipped(upstream, tuple(failure.tried)) for upstream, failure in failures.items()]
    return bases, [r for r in rows if r.upstream not in kept], [r for r in rows if r.upstream in kept]


def _obtain(
    dist: Distribution, upstream: str, stack: Stack, options: SourceOptions, progress: Progress, standing: Standing
) -> Base:
    """Of an installed package first in the form that it is patched in already, else as what packages are built of."""
    if upstream in standing.installed and options.source == "auto":
        applied = standing.applied.get(upstream)
        form: Form = "git" if applied is not None and applied.form == "git" else "sdist"
        with contextlib.suppress(SourceUnavailable):
            return obtain_form(form, upstream, dist.upstream(upstream), stack, options, progress)
    return obtain(upstream, dist.upstream(upstream), stack, options, progress)


def _tried(failures: Mapping[str, SourceUnavailable]) -> list[Tried]:
    return [t for failure in failures.values() for t in failure.tried]


def _stays(dist: Distribution, selection: Selection, upstream: str, applied: AppliedStack) -> bool:
    """Whether the tree that is applied is the one that is asked for, but for what could not be had then either."""
    stack = selection.stacks[upstream]
    chosen = {o.patch.feature for o in selection.omitted if o.upstream == upstream}
    wanted = [p for p in selection.patches[upstream] if p.feature not in applied.left_out]
    if stack.name != applied.stack or [(p.file.name, p.digest) for p in wanted] != list(applied.patches):
        return False
    lock = read_lock(dist.root, stack)
    expected = lock.expected(applied.form, applied.left_out) if lock else None
    return chosen <= applied.left_out and (expected is None or expected.tip_commit == applied.tip_commit)


def _together(failures: Mapping[str, SourceUnavailable], *, some: bool) -> SourceUnavailable:
    """One error for all upstreams that are missing: a user should not meet them one run at a time. `some`: another
    upstream could be had."""
    if len(failures) == 1:
        (only,) = failures.values()
        hints = [only.hint] if only.hint else []
        hints += ["--skip-unavailable goes on without it and lists it"] if some else []
        return SourceUnavailable(only.what, only.tried, hint="; ".join(hints) or None)
    common = {failure.hint for failure in failures.values()}
    hint = common.pop() if len(common) == 1 else "--mirror NAME=URL adds places"  # else each names its own upstream
    skipping = "goes on without them and lists them" if some else "has nothing to go on with: no source could be had"
    return SeveralUnavailable(failures, hint=f"{hint}; --skip-unavailable {skipping}")


def _unavailable(
    dist: Distribution,
    selection: Selection,
    bases: dict[str, Base],
    options: SourceOptions,
    progress: Progress,
    skip: bool,
    standing: Standing,
    kept: list[Skipped],
) -> list[Omission]:
    """Patches that touch files which this form of the source lacks. In auto, git is tried first: it has every file.

    An installed package has what upstream's build puts into it, and no source changes that: what it lacks is left out. A
    tree that is applied with these patches goes from `bases` to `kept`.
    """
    found: list[Omission] = []
    out = {id(o.patch) for o in selection.omitted}
    for upstream, base in list(bases.items()):
        wanted = [p for p in selection.patches[upstream] if id(p) not in out]
        package = standing.installed.get(upstream)
        missing = missing_files(base, wanted, package.files if package else None)
        failure: SourceUnavailable | None = None
        if missing and package is None and base.form == "sdist" and options.source == "auto":
            try:
                stack = selection.stacks[upstream]
                bases[upstream] = obtain_form("git", upstream, dist.upstream(upstream), stack, options, progress)
                continue
            except SourceUnavailable as error:
                failure = error
        if missing and package is None and not skip:
            raise _lacking(upstream, base, missing, failure, options)
        applied = standing.applied.get(upstream)
        stays = applied is not None and applied.form == "git" and _stays(dist, selection, upstream, applied)
        if failure is not None and stays:
            kept.append(Skipped(upstream, tuple(failure.tried)))
            del bases[upstream]
            continue
        place = f"the package that is installed in {package.folder}" if package else f"the {base.form} of {upstream}"
        found += [Omission(upstream, p, f"not in {place}: {', '.join(files)}") for p, files in missing]
    return found


def missing_files(
    base: Base, patches: Sequence[StackPatch], present: frozenset[bytes] | None = None
) -> list[tuple[StackPatch, list[str]]]:
    """The patches that cannot be had from this base, each with the files that it lacks; with `present`, from those of its
    files that are among them.

    A file that an earlier patch of the stack makes is not missing; one that only a missing patch makes is.
    """
    if base.form == "git" and present is None:
        return []  # holds everything: what is not there is a patch that does not apply
    named = {c.old_path for p in patches for c in p.patch.changes if c.old_path is not None}
    with ObjectReader(base.repo) as reader:
        known = reader.those_in(base.tree, named)
    if present is not None:
        known &= present
    found = []
    for patch in patches:
        wanted = {c.old_path for c in patch.patch.changes if c.old_path is not None}
        lacking = sorted(p.decode("utf-8", "backslashreplace") for p in wanted - known)
        if lacking:
            found.append((patch, lacking))
        else:
            known |= patch.paths
    return found


def _lacking(
    upstream: str,
    base: Base,
    missing: list[tuple[StackPatch, list[str]]],
    failure: SourceUnavailable | None,
    options: SourceOptions,
) -> SourceUnavailable:
    lines = [f"{p.feature} ({p.shown}) needs {', '.join(files)}" for p, files in missing]
    what = f"{upstream}: the {base.form} lacks files of these patches, and git could not be reached\n  " + "\n  ".join(
        lines
    )
    tried = list(failure.tried) if failure else [Tried(base.origin, f"form {base.form} has no such file")]
    more = BUNDLE_HINT if options.bundle is not None else f"--mirror {upstream}=URL names a git repository"
    return SourceUnavailable(what, tried, hint=f"{more}; --skip-unavailable leaves them out")
