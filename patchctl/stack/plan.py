"""From a profile to built stacks: reads patches, selects features, obtains sources, runs the stack function.

Writes only to the cache, so that a failure leaves every tree as it was.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from patchctl.doc import Doc
from patchctl.errors import BadManifest, DoesNotApply, SourceUnavailable, Tried, Where
from patchctl.git.catfile import ObjectReader
from patchctl.language import joined, message
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.lock import LockedForm, StackLock, lock_file, pin_record, read_lock
from patchctl.manifest.types import Profile, Stack
from patchctl.source.obtain import BUNDLE_HINT, obtain, obtain_form
from patchctl.source.types import Base, Form, SeveralUnavailable, SourceOptions
from patchctl.stack import result_cache
from patchctl.stack.patches import (
    Omission,
    StackPatch,
    check_name,
    check_requirements,
    dependents,
    leave_out,
    load_patch,
    load_unparsed,
    parsed,
)
from patchctl.stack.result_cache import StackResult, cache_key, note_parsed, parsed_before
from patchctl.terminal.progress import Progress

NO_PATCHES = message("its upstream is skipped")


@dataclass(frozen=True)
class Selection:
    """A profile's stacks and patches, and the patches that the profile or the user leaves out."""

    profile: Profile
    stacks: Mapping[str, Stack]
    patches: Mapping[str, Sequence[StackPatch]]
    omitted: Sequence[Omission]


@dataclass(frozen=True)
class InstalledPackage:
    """A package to patch where an installer put it: its folder, its RECORD in there, and the files that lists.

    Files that upstream's build leaves out of the package cannot be patched there.
    """

    folder: Path
    record: str
    files: frozenset[bytes]


@dataclass(frozen=True)
class AppliedStack:
    """A stack that is already applied, with what it takes to tell whether a plan gives the same."""

    stack: str
    form: str
    tip_commit: str
    patches: tuple[tuple[str, str], ...]
    left_out: frozenset[str]


@dataclass(frozen=True)
class OwnBase:
    """A tree at hand that takes the place of the pin's: its base, the commit of the pin's base, and the files that differ."""

    base: Base
    pin: str
    differing: tuple[str, ...]


@dataclass(frozen=True)
class CurrentState:
    """What exists at the plan's targets, by upstream. `own_bases` compare a target with the base that they are given."""

    installed: Mapping[str, InstalledPackage] = field(default_factory=dict)
    applied: Mapping[str, AppliedStack] = field(default_factory=dict)
    own_bases: Mapping[str, Callable[[Base], OwnBase | None]] = field(default_factory=dict)


@dataclass(frozen=True)
class PlannedStack:
    """One upstream's built stack.

    `locked` says whether the lock records exactly this result; `record` is the RECORD of a package patched in place.
    `own_base` is set if `base` is not the pin's.
    """

    upstream: str
    stack: Stack
    base: Base
    result: StackResult
    omitted: tuple[Omission, ...]
    locked: bool
    record: str | None = None
    own_base: OwnBase | None = None


@dataclass(frozen=True)
class Skipped:
    """An unavailable upstream, with every place tried."""

    upstream: Annotated[str, Doc("upstream name")]
    tried: Annotated[tuple[Tried, ...], Doc("sources tried, with the reason for each failure", pairs=True)]


@dataclass(frozen=True)
class Plan:
    """What an apply will write. `kept` upstreams are unavailable now, but already applied as planned."""

    profile: Profile
    without: tuple[str, ...]
    stacks: tuple[PlannedStack, ...]
    skipped: tuple[Skipped, ...]
    kept: tuple[Skipped, ...] = ()


def select(dist: Distribution, profile: Profile, without: Iterable[str], cache: Path | None = None) -> Selection:
    """Read a profile's patches and decide what is left out. Needs no source. Raises BadPatch, WrongUse.

    Patches that `cache` knows as parsed are parsed lazily.
    """
    stacks = dist.stacks_of(profile)
    patches = {u: load_patches(dist, s, cache) for u, s in stacks.items()}
    for patch in (p for series in patches.values() for p in series):
        check_name(patch)
    omitted = leave_out(patches, profile.without, message("the profile {profile} leaves it out", profile=profile.name))
    seen = {id(o.patch) for o in omitted}
    omitted += [o for o in leave_out(patches, without, message("left out with --without")) if id(o.patch) not in seen]
    check_requirements(patches, omitted, profile.stacks)
    return Selection(profile, stacks, patches, omitted)


def load_patches(dist: Distribution, stack: Stack, cache: Path | None = None) -> list[StackPatch]:
    """Load the patches of a stack in order; `cache` as in `select`."""
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
    current: CurrentState | None = None,
) -> Plan:
    """Obtain every source and build every stack.

    Raises SourceUnavailable, or with `skip_unavailable` lists what is missing; raises anyway if nothing is left,
    since an empty plan would pass for a profile. An applied tree is never given up because its source is unavailable:
    it stays, or, if the plan needs another tree, this raises.
    """
    found = current or CurrentState()
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
        progress.note(message("building {name}", name=upstream))
        own = tuple(o for o in omitted if o.upstream == upstream)
        stack = selection.stacks[upstream]
        patches = selection.patches[upstream]
        own_base = found.own_bases[upstream](base) if upstream in found.own_bases else None
        if own_base is not None:
            base = own_base.base
            _check_preimages(stack, own_base, patches, [o.patch for o in own])
        result = build_stack(base, patches, [o.patch for o in own], options.cache)
        lock = read_lock(dist.root, stack) if own_base is None else None
        locked = check_against_lock(dist.root, stack, lock, base, result, patches, own)
        package = found.installed.get(upstream)
        record = package.record if package else None
        planned.append(PlannedStack(upstream, stack, base, result, own, locked, record, own_base))
    return Plan(selection.profile, tuple(without), tuple(planned), tuple(skipped), tuple(kept))


def _check_preimages(stack: Stack, own: OwnBase, patches: Sequence[StackPatch], out: Sequence[StackPatch]) -> None:
    """Raise DoesNotApply, with a verdict for each patch, if one changes a file that differs from the pin's."""
    left, differing = {id(p) for p in out}, frozenset(own.differing)
    verdicts: list[str] = []
    wrong = 0
    for patch in (p for p in patches if id(p) not in left):
        touched = sorted(differing & set(map(os.fsdecode, patch.paths)))
        wrong += bool(touched)
        verdict = message("differs in {files}", files=joined(touched)) if touched else message("exact")
        verdicts.append(message("{what}: {more}", what=patch.feature, more=verdict))
    if not wrong:
        return
    what = message(
        "{upstream}: {wrong} of {count} patches change files that are not the pin's in the tree at hand",
        upstream=stack.upstream,
        wrong=wrong,
        count=len(verdicts),
    )
    name = f"{stack.upstream}/{stack.name}"
    hint = message(
        "`patchctl drift {name} --against REVISION` says what that revision asks of each, and `patchctl rebase {name} --to"
        " REVISION` moves the stack; or leave these out with --without",
        name=name,
    )
    raise DoesNotApply(joined([what, *verdicts], "\n  "), hint=hint)


def build_stack(base: Base, patches: Sequence[StackPatch], left_out: Sequence[StackPatch], cache: Path) -> StackResult:
    """Run the stack function on a cached base. Results are cached."""
    key = cache_key(base.commit, patches, left_out)
    if (known := result_cache.get(cache, key, patches, left_out)) is not None:
        return known
    from patchctl.stack.build import StackBuilder

    with ObjectReader(base.repo) as reader:
        built = StackBuilder(reader, base.commit, base.tree).build(patches, left_out)
    return result_cache.put(cache, key, built)


def check_against_lock(
    root: Path,
    stack: Stack,
    lock: StackLock | None,
    base: Base,
    result: StackResult,
    patches: Sequence[StackPatch],
    omitted: Sequence[Omission],
) -> bool:
    """Whether the lock records this result. Raises BadManifest if it records another; False if it has none."""
    if lock is None:
        return False
    where = Where(str(lock_file(root, stack.upstream, stack.name)))
    hint = message("`patchctl lock --check` shows what changed; `patchctl lock` updates it")
    if lock.pin != pin_record(stack.pin):
        raise BadManifest(message("the lock is for another pin"), where=where, hint=hint)
    digests = [(p.file, p.digest) for p in lock.patches]
    if digests != [(p.file.name, p.digest) for p in patches]:
        changed = next(
            (p.file.name for p in patches if (p.file.name, p.digest) not in digests), message("the list of patches")
        )
        raise BadManifest(
            message("the lock is for other patches: {changed} differs", changed=changed), where=where, hint=hint
        )
    expected = lock.expected(base.form, frozenset(o.patch.feature for o in omitted))
    if expected is None:
        return False
    have = LockedForm(result.base_commit, result.base_tree, result.tip_commit, result.tip_tree, expected.unavailable)
    if have != expected:
        raise BadManifest(
            message(
                "{upstream} ({form}) gives tree {tree}, but the lock has {locked}",
                upstream=stack.upstream,
                form=base.form,
                tree=have.tip_tree,
                locked=expected.tip_tree,
            ),
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
    current: CurrentState,
) -> tuple[dict[str, Base], list[Skipped], list[Skipped]]:
    """Return the bases, the skipped upstreams, and those kept as applied."""
    bases: dict[str, Base] = {}
    failures: dict[str, SourceUnavailable] = {}
    for upstream, stack in selection.stacks.items():
        try:
            bases[upstream] = _obtain(dist, upstream, stack, options, progress, current)
        except SourceUnavailable as failure:
            failures[upstream] = failure
    kept = {u for u in failures if skip and u in current.applied and _stays(dist, selection, u, current.applied[u])}
    if failures and not (skip and (bases or kept)):
        raise _together(failures, some=bool(bases))
    lost = {u: f for u, f in failures.items() if u in current.applied and u not in kept}
    if lost:
        hint = message(
            "provide the sources, or run `patchctl revert` first: apply keeps applied trees whose source is unavailable"
        )
        what = message("{names}: another tree is applied, and its source is unavailable", names=joined(lost))
        raise SourceUnavailable(joined([what, *(f.what for f in lost.values())], "\n"), _tried(lost), hint=hint)
    rows = [Skipped(upstream, tuple(failure.tried)) for upstream, failure in failures.items()]
    return bases, [r for r in rows if r.upstream not in kept], [r for r in rows if r.upstream in kept]


def _obtain(
    dist: Distribution, upstream: str, stack: Stack, options: SourceOptions, progress: Progress, current: CurrentState
) -> Base:
    """Obtain a base; for an installed package first in the form it is already patched in, else the sdist."""
    if upstream in current.installed and options.source == "auto":
        applied = current.applied.get(upstream)
        form: Form = "git" if applied is not None and applied.form == "git" else "sdist"
        with contextlib.suppress(SourceUnavailable):
            return obtain_form(form, dist.upstream(upstream), stack, options, progress)
    return obtain(dist.upstream(upstream), stack, options, progress)


def _tried(failures: Mapping[str, SourceUnavailable]) -> list[Tried]:
    return [t for failure in failures.values() for t in failure.tried]


def _stays(dist: Distribution, selection: Selection, upstream: str, applied: AppliedStack) -> bool:
    """Whether the applied tree is the requested one, apart from what was unavailable then as well."""
    stack = selection.stacks[upstream]
    chosen = {o.patch.feature for o in selection.omitted if o.upstream == upstream}
    wanted = [p for p in selection.patches[upstream] if p.feature not in applied.left_out]
    if stack.name != applied.stack or [(p.file.name, p.digest) for p in wanted] != list(applied.patches):
        return False
    lock = read_lock(dist.root, stack)
    expected = lock.expected(applied.form, applied.left_out) if lock else None
    return chosen <= applied.left_out and (expected is None or expected.tip_commit == applied.tip_commit)


def _together(failures: Mapping[str, SourceUnavailable], *, some: bool) -> SourceUnavailable:
    """Combine the errors of all missing upstreams, so that users do not meet them one per run.

    `some`: another upstream was available.
    """
    if len(failures) == 1:
        (only,) = failures.values()
        hints = [only.hint] if only.hint else []
        hints += [message("--skip-unavailable continues without it and lists it")] if some else []
        return SourceUnavailable(only.what, only.tried, hint=joined(hints, "; ") or None)
    common = {failure.hint for failure in failures.values()}
    hint = (
        common.pop() if len(common) == 1 else message("--mirror NAME=URL adds places")
    )  # otherwise each names its own upstream
    skipping = message("--skip-unavailable continues without them and lists them")
    if not some:
        skipping = message("--skip-unavailable does not help: no source is available")
    return SeveralUnavailable(failures, hint=joined([*([hint] if hint else []), skipping], "; "))


def _unavailable(
    dist: Distribution,
    selection: Selection,
    bases: dict[str, Base],
    options: SourceOptions,
    progress: Progress,
    skip: bool,
    current: CurrentState,
    kept: list[Skipped],
) -> list[Omission]:
    """Return the patches that need files this form of the source lacks. In auto, git is tried first: it has all files.

    What an installed package lacks is left out, since no source can change that. A tree already applied with these
    patches moves from `bases` to `kept`.
    """
    found: list[Omission] = []
    out = {id(o.patch) for o in selection.omitted}
    for upstream, base in list(bases.items()):
        wanted = [p for p in selection.patches[upstream] if id(p) not in out]
        package = current.installed.get(upstream)
        missing = missing_files(base, wanted, package.files if package else None)
        failure: SourceUnavailable | None = None
        if missing and package is None and base.form == "sdist" and options.source == "auto":
            try:
                stack = selection.stacks[upstream]
                bases[upstream] = obtain_form("git", dist.upstream(upstream), stack, options, progress)
                continue
            except SourceUnavailable as error:
                failure = error
        if missing and package is None and not skip:
            raise _lacking(upstream, base, missing, failure, options)
        applied = current.applied.get(upstream)
        stays = applied is not None and applied.form == "git" and _stays(dist, selection, upstream, applied)
        if failure is not None and stays:
            kept.append(Skipped(upstream, tuple(failure.tried)))
            del bases[upstream]
            continue
        found += [Omission(upstream, p, _not_there(upstream, base, package, files)) for p, files in missing]
    return found


def _not_there(upstream: str, base: Base, package: InstalledPackage | None, files: Sequence[str]) -> str:
    named = joined(files)
    if package is not None:
        return message("not in the package installed in {folder}: {files}", folder=package.folder, files=named)
    return message("not in the {form} of {upstream}: {files}", form=base.form, upstream=upstream, files=named)


def missing_files(
    base: Base, patches: Sequence[StackPatch], present: frozenset[bytes] | None = None
) -> list[tuple[StackPatch, list[str]]]:
    """Return the patches that this base cannot support, each with its missing files.

    `present` limits the base to these files. A file made by an earlier patch is not missing; one that only a missing
    patch makes is.
    """
    if base.form == "git" and present is None:
        return []  # git has every file: here a missing one means that the patch does not apply
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
    what = message(
        "{upstream}: the {form} lacks files that these patches need, and git is unavailable",
        upstream=upstream,
        form=base.form,
    )
    needs = (
        message("{feature} ({file}) needs {files}", feature=p.feature, file=p.shown, files=joined(files))
        for p, files in missing
    )
    tried = (
        list(failure.tried)
        if failure
        else [Tried(base.origin, message("form {form} has no such file", form=base.form))]
    )
    more = BUNDLE_HINT
    if options.bundle is None:
        more = message("--mirror {upstream}=URL adds a git repository", upstream=upstream)
    skipping = message("--skip-unavailable leaves these patches out")
    return SourceUnavailable(joined([what, *needs], "\n  "), tried, hint=joined([more, skipping], "; "))
