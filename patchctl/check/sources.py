"""Checks that need the pinned sources: trees against the lock in every form that can be had, and the code itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from patchctl.check.alone import check_alone
from patchctl.check.python_code import Changed, PythonCheck
from patchctl.check.series import Key, Series
from patchctl.check.switches import check_switch
from patchctl.errors import BadManifest, BadPatch, DoesNotApply, Tried
from patchctl.findings.report import Finding, NotChecked, Report, from_error
from patchctl.git.catfile import ObjectReader
from patchctl.git.objects import GITLINK
from patchctl.identify.lists import check_tree_list, tree_list_file
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.lock import LockedForm, lock_file
from patchctl.patch.apply import apply_change
from patchctl.source.types import Base, Form, SourceOptions
from patchctl.stack.locking import Computed, compute_lock, diff_locks, old_lock
from patchctl.stack.patches import StackPatch
from patchctl.terminal.progress import Progress

STATIC = (Tried("--static", "sources are left alone in this run"),)


def check_sources(
    dist: Distribution,
    series: Series,
    options: SourceOptions | None,
    progress: Progress,
    report: Report,
    *,
    alone: bool = False,
) -> None:
    """Every stack, into `report`; without `options` every form is listed as not checked, with `alone` every feature by itself too.

    Raises SourceMismatch when a source is not what was pinned: then nothing built from it says anything.
    """
    for key, patches in series.stacks.items():
        progress.note(f"verifying {key[0]} {key[1]}")
        computed = _computed(dist, key, options, progress, report)
        if computed is not None:
            report.add(_against_lock(dist, key, computed, patches))
            _count_forms(key, computed, report)
        changes = list(contents(_fullest(computed.bases), patches)) if computed is not None and computed.bases else []
        report.add(_code(key[0], patches, changes, report))
        if alone and computed is not None and computed.bases:
            report.add(check_alone(key[0], _fullest(computed.bases), patches, changes))
    progress.finish()


def _computed(
    dist: Distribution, key: Key, options: SourceOptions | None, progress: Progress, report: Report
) -> Computed | None:
    upstream, name = key
    if options is None:
        report.not_checked.append(NotChecked(f"trees of {upstream} {name}", STATIC, " ".join(key)))
        return None
    try:
        return compute_lock(dist, dist.stacks[key], options, progress)
    except (DoesNotApply, BadPatch) as error:
        report.add([from_error("applies", error, _stack_file(dist, key), upstream)])
    except BadManifest:
        pass  # the lock cannot be read: check_locks has said so
    return None


def _stack_file(dist: Distribution, key: Key) -> str:
    return dist.stack_file(dist.stacks[key]).relative_to(dist.root).as_posix()


def _count_forms(key: Key, computed: Computed, report: Report) -> None:
    for form in computed.bases:
        report.counts[f"{form} trees"] += 1
    for form, failure in computed.unavailable.items():
        tried = tuple(failure.tried) or (Tried("--source", "another form was asked for"),)
        report.not_checked.append(NotChecked(f"{key[0]} {key[1]} from {form}", tried, " ".join(key)))
    if not computed.bases:
        report.unseen.append(" ".join(key))
    if "git" not in computed.bases and "sdist" in computed.bases:
        report.not_checked += _lacking(key, computed)


def _lacking(key: Key, computed: Computed) -> Iterator[NotChecked]:
    """Patches for files that the source distribution does not hold, when there is nothing else."""
    everything = next((r.forms.get("sdist") for r in computed.lock.results if not r.without), None)
    if isinstance(everything, LockedForm):
        for feature in everything.unavailable:
            tried = Tried(computed.bases["sdist"].origin, "the source distribution does not hold what it needs")
            yield NotChecked(f"{feature} of {' '.join(key)}", (tried,), " ".join(key))


def _against_lock(dist: Distribution, key: Key, computed: Computed, patches: Sequence[StackPatch]) -> Iterator[Finding]:
    stack = dist.stacks[key]
    shown = lock_file(dist.root, *key).relative_to(dist.root).as_posix()
    lock, _ = old_lock(dist, stack)  # one that is damaged is a finding already
    # A lock for other patches is a finding already, and of course has other trees.
    same = lock is not None and [(p.file, p.digest) for p in lock.patches] == [(p.file.name, p.digest) for p in patches]
    if same and computed.bases:
        for difference in diff_locks(lock, computed.lock):
            yield Finding("lock-tree", f"computed anew from {_forms(computed)}: {difference}", shown, upstream=key[0])
    if computed.bases:
        stale = check_tree_list(dist.root, stack, _fullest(computed.bases))
        if stale:
            listed = tree_list_file(dist.root, *key).relative_to(dist.root).as_posix()
            yield Finding("tree-list", f"{stale.what}: {stale.cure}", listed, upstream=key[0])


def _forms(computed: Computed) -> str:
    return " and ".join(computed.bases)


def _code(
    upstream: str, patches: Sequence[StackPatch], changes: Sequence[Changed], report: Report
) -> Iterator[Finding]:
    """Compiles and names in every file that can be had: all of them from a base, else the carried ones."""
    check = PythonCheck(upstream)
    written = {id(c.patch): c for c in changes}
    for patch in patches:
        changed = written.get(id(patch))
        yield from check.changed(changed) if changed is not None else check.carried(patch)
        yield from check_switch(patch, upstream, changed)
    report.counts["Python files"] += len(check.checked)


def _fullest(bases: Mapping[Form, Base]) -> Base:
    """git has every file of the upstream, a source distribution some."""
    return bases.get("git") or next(iter(bases.values()))


def contents(base: Base, patches: Sequence[StackPatch]) -> Iterator[Changed]:
    """What every patch that can be had from this base makes of the files. The stack function has proved them before."""
    with ObjectReader(base.repo) as reader:
        files = reader.files(base.tree)
        now: dict[bytes, bytes] = {}
        for patch in patches:
            wanted = [c.old_path for c in patch.patch.changes if c.old_path is not None and c.old_path not in now]
            if any(p not in files for p in wanted):
                continue  # unavailable from this form; the lock says so
            now.update(reader.blobs(files, [p for p in wanted if files[p].mode != GITLINK]))
            yield _apply(patch, now)


def _apply(patch: StackPatch, now: dict[bytes, bytes]) -> Changed:
    written: dict[bytes, tuple[bytes | None, bytes]] = {}
    gone: list[bytes] = []
    for change in patch.patch.changes:
        before = now.get(change.old_path) if change.old_path is not None else None
        after = apply_change(change, before or b"", patch.shown)
        if change.new_path is not None:
            written[change.new_path] = (before, after)
        if change.kind in ("delete", "rename") and change.old_path is not None:
            gone.append(change.old_path)
    written.update({path.encode(): (None, data) for path, data in patch.carried.items()})
    for path in gone:
        now.pop(path, None)
    now.update({path: after for path, (_, after) in written.items()})
    return Changed(patch, {path.decode("utf-8", "surrogateescape"): pair for path, pair in written.items()})
