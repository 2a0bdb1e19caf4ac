"""Checks that need the pinned sources: trees against the lock in every available form, and the code that patches write.

The code has to compile, gain no undefined name, contain what `Switch:` names, and with `isolated` apply with nothing but what it
requires. Without a source the carried files are checked.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from patchctl.check.patch_rules import added_lines
from patchctl.check.series import Key, Series
from patchctl.drift.api_diff import PatchedSource, module_name, uses, written_lines
from patchctl.errors import BadManifest, BadPatch, DoesNotApply, Tried
from patchctl.findings import Finding, Level, NotChecked, Report, from_error
from patchctl.git.catfile import ObjectReader
from patchctl.git.objects import GITLINK
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.lock import LockedForm, lock_file
from patchctl.manifest.series import shared_folder
from patchctl.patch.hunks import apply_change
from patchctl.source.types import Base, Form, SourceOptions
from patchctl.stack.build import StackBuilder
from patchctl.stack.locking import Computed, compute_lock, diff_locks, old_lock
from patchctl.stack.patches import CARRIED_FOLDER, LintedPatch, StackPatch, carried_folder, with_requirements
from patchctl.stack.tree_lists import check_tree_list, tree_list_file
from patchctl.terminal.progress import Progress

STATIC = (Tried("--static", "sources are left alone in this run"),)


@dataclass(frozen=True)
class PatchedFiles:
    """A patch and each path that it writes, with the content before (None for a new file) and after."""

    patch: StackPatch
    files: Mapping[str, tuple[bytes | None, bytes]]


def check_sources(
    dist: Distribution,
    series: Series,
    options: SourceOptions | None,
    progress: Progress,
    report: Report,
    *,
    isolated: bool = False,
) -> None:
    """Add the findings on every stack to `report`. Without `options` every form counts as not checked; `isolated` adds that check.

    Raises SourceMismatch when a source is not what was pinned: then nothing built from it says anything.
    """
    for key, patches in series.stacks.items():
        progress.note(f"verifying {key[0]} {key[1]}")
        computed = _computed(dist, key, options, progress, report)
        changes: dict[int, PatchedFiles] = {}  # by the id of their patch
        if computed is not None:
            _count_forms(key, computed, report)
        if computed is not None and computed.bases:
            report.add(_against_lock(dist, key, computed, patches))
            changes = {id(one.patch): one for one in _contents(_fullest(computed.bases), patches)}
        report.add(_code(key[0], patches, changes, report))
        if isolated and computed is not None and computed.bases:
            report.add(_isolated(key[0], _fullest(computed.bases), patches, changes))
    progress.finish()


def _computed(
    dist: Distribution, key: Key, options: SourceOptions | None, progress: Progress, report: Report
) -> Computed | None:
    upstream, name = key
    if options is None:
        report.not_checked.append(NotChecked(f"trees of {upstream} {name}", STATIC, "/".join(key)))
        return None
    try:
        return compute_lock(dist, dist.stacks[key], options, progress)
    except (DoesNotApply, BadPatch) as error:
        file = dist.stack_file(dist.stacks[key]).relative_to(dist.root).as_posix()
        report.add([from_error("applies", error, file, upstream)])
    except BadManifest:
        pass  # the lock cannot be read: check_locks has said so
    return None


def _count_forms(key: Key, computed: Computed, report: Report) -> None:
    for form in computed.bases:
        report.counts[f"{form} trees"] += 1
    for form, failure in computed.unavailable.items():
        tried = tuple(failure.tried) or (Tried("--source", "another form was asked for"),)
        report.not_checked.append(NotChecked(f"{key[0]} {key[1]} from {form}", tried, "/".join(key)))
    if not computed.bases:
        report.unseen.append(" ".join(key))
    everything = next((r.forms.get("sdist") for r in computed.lock.results if not r.without), None)
    if "git" not in computed.bases and "sdist" in computed.bases and isinstance(everything, LockedForm):
        for feature in everything.unavailable:
            lacking = Tried(computed.bases["sdist"].origin, "the source distribution does not hold what it needs")
            report.not_checked.append(NotChecked(f"{feature} of {' '.join(key)}", (lacking,), "/".join(key)))


def _against_lock(dist: Distribution, key: Key, computed: Computed, patches: Sequence[StackPatch]) -> Iterator[Finding]:
    stack = dist.stacks[key]
    shown = lock_file(dist.root, *key).relative_to(dist.root).as_posix()
    lock, _ = old_lock(dist, stack)  # one that is damaged is a finding already
    # A lock for other patches is a finding already, and of course has other trees.
    same = lock is not None and [(p.file, p.digest) for p in lock.patches] == [(p.file.name, p.digest) for p in patches]
    forms = " and ".join(computed.bases)
    for difference in diff_locks(lock, computed.lock) if same else ():
        yield Finding("lock-tree", f"computed anew from {forms}: {difference}", shown, upstream=key[0])
    if stale := check_tree_list(dist.root, stack, _fullest(computed.bases)):
        listed = tree_list_file(dist.root, *key).relative_to(dist.root).as_posix()
        yield Finding("tree-list", f"{stale.what}: {stale.cure}", listed, upstream=key[0])


def _code(
    upstream: str, patches: Sequence[StackPatch], changes: Mapping[int, PatchedFiles], report: Report
) -> Iterator[Finding]:
    """Check every file that patches write: all with a base, else the carried ones."""
    check = PythonCheck(upstream)
    for patch in patches:
        changed = changes.get(id(patch))
        carried: Mapping[str, tuple[None, bytes]] = {path: (None, data) for path, data in patch.carried.items()}
        yield from check.changed(changed or PatchedFiles(patch, carried))
        yield from check_switch(patch, upstream, changed)
    report.counts["Python files"] += len(check.checked)


def _fullest(bases: Mapping[Form, Base]) -> Base:
    """git has every file of the upstream, a source distribution some."""
    return bases.get("git") or next(iter(bases.values()))


def _contents(base: Base, patches: Sequence[StackPatch]) -> Iterator[PatchedFiles]:
    """What each patch makes of the base's files, but for patches whose files it lacks. The stack function has verified them before."""
    with ObjectReader(base.repo) as reader:
        files = reader.files(base.tree)
        now: dict[bytes, bytes] = {}
        for patch in patches:
            wanted = [c.old_path for c in patch.patch.changes if c.old_path is not None and c.old_path not in now]
            if any(p not in files for p in wanted):
                continue  # unavailable from this form; the lock says so
            now.update(reader.blobs(files, [p for p in wanted if files[p].mode != GITLINK]))
            yield _apply(patch, now)


def _apply(patch: StackPatch, now: dict[bytes, bytes]) -> PatchedFiles:
    written: dict[bytes, tuple[bytes | None, bytes]] = {}
    for change in patch.patch.changes:
        before = now.get(change.old_path) if change.old_path is not None else None
        after = apply_change(change, before or b"", patch.shown)
        if change.new_path is not None:
            written[change.new_path] = (before, after)
    written.update({path.encode(): (None, data) for path, data in patch.carried.items()})
    for change in patch.patch.changes:
        if change.kind in ("delete", "rename") and change.old_path is not None:
            now.pop(change.old_path, None)
    now.update({path: after for path, (_, after) in written.items()})
    return PatchedFiles(patch, {path.decode("utf-8", "surrogateescape"): pair for path, pair in written.items()})


def _isolated(
    upstream: str, base: Base, patches: Sequence[StackPatch], changes: Mapping[int, PatchedFiles]
) -> Iterator[Finding]:
    """Apply each feature with only what it requires. Features that are not in `changes`, by `_contents`, are skipped."""
    with ObjectReader(base.repo) as reader:
        builder = StackBuilder(reader, base.commit, base.tree)
        for patch in patches:
            kept = with_requirements(patches, patch, upstream)
            if any(id(p) not in changes for p in kept):
                continue
            stay = {id(p) for p in kept}
            try:
                builder.build(patches, [p for p in patches if id(p) not in stay])
            except DoesNotApply as error:
                yield from_error("alone", error, patch.shown, upstream)
            for file, line, said in _undeclared_imports(changes[id(patch)], patches, kept):
                yield Finding("alone", f"{file}:{line} uses {said}", patch.shown, upstream=upstream, patch=patch.shown)


def _undeclared_imports(
    changed: PatchedFiles, patches: Sequence[StackPatch], kept: Sequence[StackPatch]
) -> Iterator[tuple[str, int, str]]:
    """(file, line, description) of uses of a module that another feature carries, if that is not among `kept`. Of an upstream
    file only the patch's own lines count."""
    stay = {p.feature for p in kept}
    carried = [
        (tuple(module_name(c).split(".")), p.feature) for p in patches if p.feature not in stay for c in p.carried
    ]
    lines = {c.new_path: written_lines(c.hunks) for c in changed.patch.patch.changes if c.new_path is not None}
    for path, (_, after) in changed.files.items():
        if not path.endswith(".py"):
            continue
        for use in uses(PatchedSource(path, after, lines.get(path.encode("utf-8", "surrogateescape")))):
            feature = next((f for module, f in carried if use.target[: len(module)] == module), None)
            if feature is not None:
                yield path, use.line, f"{'.'.join(use.target)} of {feature}, which it does not require"
                break


@dataclass
class PythonCheck:
    """Caches what it parsed: the file after one patch is the file before the next.

    pyflakes reads names only; it imports and runs nothing.
    """

    upstream: str
    checked: set[str] = field(default_factory=set)
    _undefined: dict[bytes, Counter[str]] = field(default_factory=dict)

    def changed(self, changed: PatchedFiles) -> Iterator[Finding]:
        """Every Python file that a patch writes."""
        patch = changed.patch
        for path, (before, after) in changed.files.items():
            if not path.endswith((".py", ".pyi")):
                continue
            self.checked.add(path)
            file, line = _place(patch, path)
            if (broken := _compile(path, after)) is not None:
                # A file that upstream's own code breaks for this Python is not the patch's fault.
                if before is None or _compile(path, before) is None:
                    found, what = broken
                    at = line if file == patch.shown else found
                    message = f"{path} line {found} does not compile: {what}"
                    yield Finding("python-compiles", message, file, at, "error", self.upstream, patch.feature)
                continue
            gained = self._names(after) - (Counter() if before is None else self._names(before))
            for name in sorted(gained):
                message = f"{path}: {name} is defined nowhere"
                yield Finding("undefined-name", message, file, line, "error", self.upstream, patch.feature)

    def _names(self, source: bytes) -> Counter[str]:
        """How often each undefined name is used; a file that does not compile has none."""
        if source not in self._undefined:
            self._undefined[source] = _undefined_names(source)
        return self._undefined[source]


def _place(patch: StackPatch, path: str) -> tuple[str, int | None]:
    """The place to fix: the carried file, or the patch's section for this file."""
    if path in patch.carried:
        folder, shown = carried_folder(patch.file, path), Path(patch.shown).parent
        feature = shown if folder.parent == patch.file.parent else shared_folder(shown)
        return f"{feature.as_posix()}/{CARRIED_FOLDER}/{path}", None
    line = next((c.line for c in patch.patch.changes if c.new_path == path.encode("utf-8", "surrogateescape")), None)
    return patch.shown, line


def _compile(path: str, source: bytes) -> tuple[int, str] | None:
    """None if it compiles, else the line and the error. Writes no bytecode, runs nothing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        return error.lineno or 1, error.msg
    except (ValueError, RecursionError, MemoryError) as error:  # a NUL byte; nested too deep
        return 1, str(error) or type(error).__name__
    return None


def _undefined_names(source: bytes) -> Counter[str]:
    from pyflakes.checker import Checker
    from pyflakes.messages import UndefinedExport, UndefinedLocal, UndefinedName

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Counter()
    found = Checker(tree).messages
    return Counter(
        str(m.message_args[0]) for m in found if isinstance(m, (UndefinedName, UndefinedLocal, UndefinedExport))
    )


def switch_name(switch: str | None) -> str | None:
    """The variable, the option, or the last part of the key; None for `none` and for an unknown form."""
    kind, _, rest = (switch or "").partition(" ")
    name = rest.partition("=")[0].strip()
    names = {"env": name, "config": name.rpartition(".")[2].lstrip("+"), "option": name.lstrip("-")}
    return names.get(kind) or None


def check_switch(patch: StackPatch, upstream: str, changed: PatchedFiles | None) -> Iterator[Finding]:
    """Look for the switch in added lines and carried files, and with `changed` in the whole files after the patch.

    Without a source a switch that upstream's lines read is not found; that is a note.
    """
    name = switch_name(patch.header.trailer("Switch"))
    if name is None:
        return
    pattern = re.compile(rb"(?<![A-Za-z0-9_])" + re.escape(name.encode()) + rb"(?![A-Za-z0-9_])")
    if any(pattern.search(text) for text in _written(patch)):
        return
    line = LintedPatch(patch).trailer_line("Switch")
    level: Level = "error"
    message = f"{name} is in no file that the patch writes"
    if changed is None:
        level = "note"
        message = f"{name} is in no line that the patch adds, and the whole files could not be had"
    elif any(pattern.search(after) for _, after in changed.files.values()):
        return
    yield Finding("switch-in-code", message, patch.shown, line, level, upstream, patch.feature)


def _written(patch: StackPatch) -> Iterator[bytes]:
    for change in patch.patch.changes:
        for hunk in change.hunks:
            yield from (line for _, line in added_lines(hunk))
    yield from patch.carried.values()
