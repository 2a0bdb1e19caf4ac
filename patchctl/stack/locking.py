"""Computes a stack's lock from its patches and every form of its source that can be had."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
    pin_record,
    read_lock,
)
from patchctl.manifest.types import Stack
from patchctl.source.obtain import obtain_form
from patchctl.source.types import Base, Form, SourceOptions
from patchctl.stack.patches import StackPatch
from patchctl.stack.plan import build_stack, load_patches, missing_files
from patchctl.stack.result_cache import StackResult
from patchctl.stack.select import Omission, dependents, leave_out
from patchctl.terminal.progress import Progress


@dataclass(frozen=True)
class Computed:
    """A lock as it should be; the forms that could not be had, and why; the bases of those that could.

    `known` is False where no form could be had and the old lock is for something else, or not there: then nothing is
    known, and the lock is no reason to give the old one up.
    """

    lock: StackLock
    known: bool
    unavailable: Mapping[Form, SourceUnavailable]
    bases: Mapping[Form, Base]
    results: Mapping[Form, StackResult] = field(default_factory=dict)


def forms_of(stack: Stack) -> tuple[Form, ...]:
    """The forms that a stack's source exists in."""
    pin = stack.pin
    there: tuple[tuple[Form, object], ...] = (("git", pin.commit), ("sdist", pin.sdist))
    return tuple(form for form, known in there if known is not None)


def compute_lock(dist: Distribution, stack: Stack, options: SourceOptions, progress: Progress) -> Computed:
    """The lock of a stack. A form that cannot be had keeps its record when nothing it depends on has changed, and is
    unknown otherwise: never guessed, never deleted. Raises BadPatch, DoesNotApply."""
    patches = load_patches(dist, stack)
    bases: dict[Form, Base] = {}
    unavailable: dict[Form, SourceUnavailable] = {}
    wanted = forms_of(stack) if options.source == "auto" else (options.source,)
    for form in forms_of(stack):
        try:
            if form not in wanted:
                raise SourceUnavailable(f"{stack.upstream}: only form {options.source} was asked for", [])
            bases[form] = obtain_form(form, stack.upstream, dist.upstream(stack.upstream), stack, options, progress)
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
    """The lock that is there, or None and, in a line, what is the matter with a file that is no lock. Raises BadManifest for one
    that another version may read."""
    try:
        return read_lock(dist.root, stack), []
    except DamagedLock as error:
        return None, [error.what]


def diff_locks(old: StackLock | None, new: StackLock) -> list[str]:
    """What differs between two locks, a line each; empty when they are equal."""
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
    """What nobody could compute is not said to have changed."""
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
    """The old lock, when it was made for this pin and these very patches."""
    if old is None or old.pin != pin_record(stack.pin):
        return None
    same = [(p.file, p.digest) for p in old.patches] == [(p.file.name, p.digest) for p in patches]
    return old if same else None


def _selections(
    dist: Distribution, stack: Stack, patches: Sequence[StackPatch], there: StackLock | None
) -> list[tuple[str, ...]]:
    """Every set of this stack's features that some profile leaves out, the empty one first.

    Of each profile there are two: its own, and what is left where git hosts are out of reach. That one depends on other
    stacks; while one of those cannot be read, the selections of the lock that is `there` stay.
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
    """This stack's features that require one of an upstream that no package index has; none if it is one itself.

    None when a patch of another stack cannot be read: the check of that stack says so, and this one has its own.
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
    """The stack's result, and the features that this form cannot give (with those that require them)."""
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
    """Each patch's files from the first form that has it; from the old lock when no form at hand has it."""
    steps = {id(s.patch): s for r in reversed(list(results.values())) for s in r.steps}
    kept = {p.file: p.files for p in old.patches} if old else {}
    locked = []
    for patch in patches:
        step = steps.get(id(patch))
        files = tuple(LockedFile(c.path, _side(c.before), _side(c.after)) for c in step.touched) if step else None
        locked.append(LockedPatch(patch.file.name, patch.feature, patch.digest, files or kept.get(patch.file.name)))
    return tuple(locked)


def _side(entry: TreeEntry | None) -> tuple[str, str] | None:
    return None if entry is None else (f"{entry.mode:06o}", entry.id)
