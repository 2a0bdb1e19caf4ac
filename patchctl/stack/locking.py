"""Computes a stack's lock from its patches and every available form of its source, and writes it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from patchctl.atomic import replace_file
from patchctl.doc import Doc
from patchctl.errors import BadPatch, SourceUnavailable
from patchctl.git.objects import TreeEntry
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.lock import (
    UNKNOWN,
    DamagedLock,
    LockedFile,
    LockedForm,
    LockedPatch,
    LockedResult,
    StackLock,
    lock_file,
    pin_record,
    read_lock,
    render_lock,
)
from patchctl.manifest.types import Stack
from patchctl.source.obtain import obtain_form
from patchctl.source.types import Base, Form, SourceOptions
from patchctl.stack.patches import Omission, StackPatch, dependents, leave_out
from patchctl.stack.plan import build_stack, load_patches, missing_files
from patchctl.stack.result_cache import StackResult
from patchctl.stack.tree_lists import check_tree_list, update_tree_list
from patchctl.terminal.progress import Progress


@dataclass(frozen=True)
class Computed:
    """A recomputed lock, the unavailable forms with the reasons, and the bases and results of the others.

    `known` is False if no form was available and there is no valid old lock: then nothing is known, which is no
    reason to replace the old lock.
    """

    lock: StackLock
    known: bool
    unavailable: Mapping[Form, SourceUnavailable]
    bases: Mapping[Form, Base]
    results: Mapping[Form, StackResult] = field(default_factory=dict)


def forms_of(stack: Stack) -> tuple[Form, ...]:
    """Return the forms that a stack's source exists in."""
    pin = stack.pin
    there: tuple[tuple[Form, object], ...] = (("git", pin.commit), ("sdist", pin.sdist))
    return tuple(form for form, known in there if known is not None)


def compute_lock(dist: Distribution, stack: Stack, options: SourceOptions, progress: Progress) -> Computed:
    """Compute the lock of a stack. Raises BadPatch, DoesNotApply.

    An unavailable form keeps its record if nothing it depends on has changed, else becomes unknown: never guessed,
    never dropped.
    """
    patches = load_patches(dist, stack)
    bases: dict[Form, Base] = {}
    unavailable: dict[Form, SourceUnavailable] = {}
    wanted = forms_of(stack) if options.source == "auto" else (options.source,)
    for form in forms_of(stack):
        try:
            if form not in wanted:
                raise SourceUnavailable(f"{stack.upstream}: only form {options.source} was requested", [])
            bases[form] = obtain_form(form, dist.upstream(stack.upstream), stack, options, progress)
        except SourceUnavailable as failure:
            unavailable[form] = failure
    there, _ = old_lock(dist, stack)
    old = _still_valid(there, stack, patches)
    results = {form: _result(base, patches, [], options) for form, base in bases.items()}
    files = _locked_patches(patches, {f: r for f, (r, _) in results.items()}, old)
    records = tuple(
        LockedResult(without, {f: _record(f, without, stack, patches, bases, options, old) for f in forms_of(stack)})
        for without in _selections(dist, stack, patches, there)
    )
    lock = StackLock(stack.upstream, stack.name, pin_record(stack.pin), files, records)
    known = bool(bases) or old is not None
    return Computed(lock, known, unavailable, bases, {f: r for f, (r, _) in results.items()})


def old_lock(dist: Distribution, stack: Stack) -> tuple[StackLock | None, list[str]]:
    """Return the existing lock, or None and a line saying why the file is not a lock.

    Raises BadManifest for a lock of another version.
    """
    try:
        return read_lock(dist.root, stack), []
    except DamagedLock as error:
        return None, [error.what]


def diff_locks(old: StackLock | None, new: StackLock) -> list[str]:
    """Return the differences between two locks, one line each."""
    if old is None:
        return ["there is no lock yet"]
    lines = []
    if old.pin != new.pin:
        lines.append("the pin changed")
    before = {p.file: p for p in old.patches}
    after = {p.file: p for p in new.patches}
    lines += [f"{f} was added" for f in after if f not in before] + [
        f"{f} was removed" for f in before if f not in after
    ]
    lines += [f"{f} changed" for f in after if f in before and _changed(before[f], after[f])]
    if [p.file for p in old.patches] != [p.file for p in new.patches] and not lines:
        lines.append("the order of the patches changed")
    lines += _diff_results(old, new)
    return lines


def _changed(before: LockedPatch, after: LockedPatch) -> bool:
    """Whether a patch's entry changed. An entry that could not be computed has not."""
    return before.digest != after.digest or (after.files is not None and before != after)


def _diff_results(old: StackLock, new: StackLock) -> list[str]:
    before = {r.without: r.forms for r in old.results}
    after = {r.without: r.forms for r in new.results}
    lines = []
    for without in sorted(before.keys() | after.keys()):
        named = f" without {', '.join(without)}" if without else ""
        if without not in before or without not in after:
            lines.append(f"the selection{named or ' of all features'} was {'added' if without in after else 'removed'}")
            continue
        for form in sorted(before[without].keys() | after[without].keys()):
            if before[without].get(form) != after[without].get(form):
                how = "is not known" if after[without].get(form) == UNKNOWN else "changed"
                lines.append(f"the result{named} in form {form} {how}")
    return lines


def _still_valid(old: StackLock | None, stack: Stack, patches: Sequence[StackPatch]) -> StackLock | None:
    """Return the old lock if it is for this pin and exactly these patches."""
    if old is None or old.pin != pin_record(stack.pin):
        return None
    same = [(p.file, p.digest) for p in old.patches] == [(p.file.name, p.digest) for p in patches]
    return old if same else None


def _selections(
    dist: Distribution, stack: Stack, patches: Sequence[StackPatch], there: StackLock | None
) -> list[tuple[str, ...]]:
    """Return every set of this stack's features that some profile leaves out, the empty one first.

    Each profile has two: its own, and the one without git access. The latter depends on other stacks; while one of
    those is unreadable, the selections of the existing lock are kept.
    """
    features = {p.feature for p in patches}
    found: set[tuple[str, ...]] = {()}
    without_git: dict[tuple[tuple[str, str], ...], set[str] | None] = {}
    for profile in dist.every_profile():
        if profile.stacks.get(stack.upstream) == stack.name:
            named = [f.partition("@") for f in profile.without]
            own = {n for n, _, u in named if n in features and u in ("", stack.upstream)}
            stacks = tuple(sorted(profile.stacks.items()))
            if stacks not in without_git:
                without_git[stacks] = _lost_without_git(dist, stack, list(dist.stacks_of(profile).values()))
            found |= {tuple(sorted(own)), tuple(sorted(own | (without_git[stacks] or set())))}
    if None in without_git.values() and there is not None:
        found |= {r.without for r in there.results if features.issuperset(r.without)}
    return sorted(found, key=lambda names: (len(names), names))


def _lost_without_git(dist: Distribution, stack: Stack, stacks: Sequence[Stack]) -> set[str] | None:
    """Return this stack's features that require one of a stack without an sdist; none if this one has no sdist.

    Returns None if a patch of another stack cannot be read, which that stack's own check reports.
    """
    if "sdist" not in forms_of(stack):
        return set()
    try:
        series = {other.upstream: load_patches(dist, other) for other in stacks}
    except BadPatch:
        return None
    gone = [other for other in stacks if "sdist" not in forms_of(other)]
    omitted = [Omission(other.upstream, patch, "in git only") for other in gone for patch in series[other.upstream]]
    return {o.patch.feature for o in dependents(series, omitted) if o.upstream == stack.upstream}


def _result(
    base: Base, patches: Sequence[StackPatch], without: Sequence[str], options: SourceOptions
) -> tuple[StackResult, tuple[str, ...]]:
    """Return the stack's result, and the features this form lacks, with their dependents."""
    series = {base.upstream: patches}
    omitted = leave_out(series, without, "left out")
    out = {id(o.patch) for o in omitted}
    lacking = [p.feature for p, _ in missing_files(base, [p for p in patches if id(p) not in out])]
    omitted += [o for o in leave_out(series, lacking, "unavailable") if id(o.patch) not in out]
    omitted += dependents(series, omitted) if lacking else []
    result = build_stack(base, patches, [o.patch for o in omitted], options.cache)
    return result, tuple(sorted({o.patch.feature for o in omitted} - set(without)))


def _record(
    form: Form,
    without: tuple[str, ...],
    stack: Stack,
    patches: Sequence[StackPatch],
    bases: Mapping[Form, Base],
    options: SourceOptions,
    old: StackLock | None,
) -> LockedForm | str:
    if form not in bases:
        kept = next((r.forms.get(form) for r in old.results if r.without == without), None) if old else None
        return kept or UNKNOWN
    result, unavailable = _result(bases[form], patches, without, options)
    return LockedForm(result.base_commit, result.base_tree, result.tip_commit, result.tip_tree, unavailable)


def _locked_patches(
    patches: Sequence[StackPatch], results: Mapping[Form, StackResult], old: StackLock | None
) -> tuple[LockedPatch, ...]:
    """Take each patch's files from the first form that has it, else from the old lock."""
    steps = {id(s.patch): s for r in reversed(list(results.values())) for s in r.steps}
    kept = {p.file: p.files for p in old.patches} if old else {}
    locked = []
    for patch in patches:
        step = steps.get(id(patch))
        files = (
            tuple(LockedFile(os.fsdecode(c.path), _side(c.before), _side(c.after)) for c in step.touched)
            if step
            else None
        )
        locked.append(LockedPatch(patch.file.name, patch.feature, patch.digest, files or kept.get(patch.file.name)))
    return tuple(locked)


def _side(entry: TreeEntry | None) -> tuple[str, str] | None:
    return None if entry is None else (f"{entry.mode:06o}", entry.id)


@dataclass(frozen=True)
class LockRow:
    """The lock of one stack.

    `lost` is true if it could not be computed and the file is missing or does not match the stack.
    """

    upstream: Annotated[str, Doc("upstream name")]
    stack: Annotated[str, Doc("stack name")]
    file: Annotated[str, Doc("path of the lock")]
    differences: Annotated[tuple[str, ...], Doc("differences from the existing file")]
    forms: Annotated[tuple[str, ...], Doc("source forms that were computed")]
    unavailable: Annotated[dict[str, list[tuple[str, str]]], Doc("sources tried, by unavailable form")]
    written: Annotated[
        bool,
        Doc(
            "true if the lock was written; false if nothing changed, with `--check`, or if no form was available and"
            " the old record is stale (exit code 3)"
        ),
    ]
    lost: bool


def lock_stack(dist: Distribution, stack: Stack, options: SourceOptions, progress: Progress, *, check: bool) -> LockRow:
    """Compute one lock, and write it unless `check` says no, nothing differs, or nothing is known of it."""
    computed = compute_lock(dist, stack, options, progress)
    there, damage = old_lock(dist, stack)
    differences = damage or diff_locks(there, computed.lock)
    base = next(iter(computed.bases.values()), None)
    if base is not None:
        listed = (check_tree_list if check else update_tree_list)(dist.root, stack, base)
        differences += [listed.what] if listed else []
    file = lock_file(dist.root, stack.upstream, stack.name)
    written = bool(differences) and not check and computed.known
    if written:
        replace_file(file, render_lock(computed.lock).encode())
    return LockRow(
        upstream=stack.upstream,
        stack=stack.name,
        file=str(file),
        differences=tuple(differences),
        forms=tuple(computed.bases),
        unavailable={f: [(t.place, t.reason) for t in failure.tried] for f, failure in computed.unavailable.items()},
        written=written,
        lost=not computed.known,
    )
