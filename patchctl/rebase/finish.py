"""Finishes a rebase: writes patch files that reproduce the work tree, then the manifest, then hands the work tree over."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from patchctl.atomic import drop_empty, replace_file
from patchctl.catalog.evidence import Evidence
from patchctl.drift.api_diff import PatchedSource, Reader, changed_names, written_lines
from patchctl.errors import DONE, MOVES_CLEANLY, SOMEBODY_HAS_TO_WORK, LocalEdits
from patchctl.git.catfile import ObjectReader
from patchctl.git.history import commits_between
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.files import exclusive_writer, rewrite_patches, rewrite_texts
from patchctl.manifest.load import loads
from patchctl.manifest.lock import lock_file
from patchctl.manifest.series import place_of
from patchctl.manifest.types import Stack
from patchctl.rebase.cherry_pick import clear, work_of
from patchctl.rebase.rebase_state import STATE_FILE, RebaseRun, RebaseState, Writing, let_go, new_stack, write_state
from patchctl.scratch import scratch
from patchctl.source.upstream_releases import RevisionTree
from patchctl.stack.export import Exported, export_commits, write_stack
from patchctl.stack.patches import StackPatch, load_patch
from patchctl.stack.plan import load_patches
from patchctl.stack.tree_lists import tree_list_file
from patchctl.workspace.edit import check_read_back, mark_exported, series_digest
from patchctl.workspace.trees import commit_tree

SCRATCH = "patchctl-rebase-"


@dataclass(frozen=True)
class RebaseResult:
    """What a rebase wrote. `same`: features whose patch is byte for byte as before. `unproven`: why no record holds, by feature.
    To look at: `broken` (requirements that did not arrive), `calls` (by feature, upstream names that changed), `red` (failed proofs)."""

    stack: Stack
    folder: Path
    files: tuple[str, ...]
    range_diff: Path
    same: frozenset[str]
    stale: frozenset[str]
    unproven: dict[str, str]
    broken: tuple[str, ...]
    calls: tuple[tuple[str, str], ...]
    red: tuple[str, ...] = ()

    @property
    def open(self) -> list[str]:
        return [*self.broken, *(line for _, line in self.calls), *self.red]

    @property
    def verdict(self) -> int:
        """The exit code, as of `drift`: 0 nothing is stale, 10 all that is stale is proven here, 20 someone has to work."""
        if self.broken or self.red or self.stack.postponed or self.stale & self.unproven.keys():
            return SOMEBODY_HAS_TO_WORK
        return MOVES_CLEANLY if self.stale or self.stack.dropped else DONE


def finish(run: RebaseRun, state: RebaseState) -> RebaseResult:
    """Write patches and manifest; the lock and `hand_over` come after it. Raises LocalEdits for files in the way, and what `export`
    raises for commits that are not patches."""
    folder, dist = run.place.hidden, run.dist
    work = work_of(folder)
    clear(work, state.head)
    stack = new_stack(state)
    before = dist.stack(state.upstream, state.old)
    old = load_patches(dist, before)
    final = state.stages[-1].base
    with ObjectReader(folder / ".git") as reader:
        commits = commits_between(folder, final)
        found = export_commits(reader, commit_tree(reader, final), commits, old)
        exported = [replace(e, name=f"{n:04d}{e.name[4:]}") for n, e in enumerate(found, 1)]  # without gaps
        check_read_back(reader, final, commit_tree(reader, state.head), exported)
    manifest = _manifest(state, [e.name for e in exported], {**before.unlinted, **stack.unlinted})
    loads(manifest.encode(), Stack, str(dist.stack_file(stack)))  # what could not be read again is not written
    target = dist.root / "patches" / stack.upstream / stack.name
    with exclusive_writer(dist.root):
        state = _note_writing(run, state, stack, target, exported)
        write_stack(target, exported)
        replace_file(dist.stack_file(stack), manifest.encode())
    ranged = _range_diff(run, state)
    own = [load_patch(target / place_of(e.name), dist.root) for e in exported]
    with ObjectReader(folder / ".git") as reader:
        calls = tuple(changed_calls(reader, state.old_commits[-1], [c.id for c in commits], own))
    mark_exported(folder, series_digest((p.file.name, p.data, p.carried) for p in own))
    written = replace(stack, patches=[e.name for e in exported], dropped=state.dropped, postponed=state.postponed)
    digests = {p.digest for p in old}
    same = frozenset(p.feature for p in own if p.digest in digests)
    stale = frozenset(p.feature for p in own) - same | {feature for feature, _ in calls}
    return RebaseResult(
        written,
        run.place.folder,
        tuple(e.name for e in exported),
        ranged,
        same,
        stale,
        _unproven(dist, written, own),
        tuple(_requirements(own, state)),
        calls,
    )


def hand_over(run: RebaseRun) -> None:
    """Release the work tree as one that `edit` makes. Until then a killed run can be continued."""
    let_go(work_of(run.place.hidden))
    (run.place.release() / ".git" / STATE_FILE).unlink()  # which leaves a work tree as `edit` makes it


def after_proofs(ended: RebaseResult, dist: Distribution, red: Sequence[str]) -> RebaseResult:
    """The result with what the distribution's records say after proofs ran; `red` are those that failed."""
    stack = dist.stack(ended.stack.upstream, ended.stack.name)
    return replace(ended, unproven=_unproven(dist, stack, load_patches(dist, stack)), red=tuple(red))


def take_back(run: RebaseRun, state: RebaseState) -> None:
    """Undo the writing of an interrupted `finish`."""
    assert state.writing is not None
    dist, stack = run.dist, new_stack(state)
    file = dist.stack_file(stack)
    with exclusive_writer(dist.root):
        for one, before in (
            (file, state.writing.manifest),
            (lock_file(dist.root, stack.upstream, stack.name), state.writing.lock),
            (tree_list_file(dist.root, stack.upstream, stack.name), state.writing.listed),
        ):
            if before is None:
                _unlink(one)
            else:
                replace_file(one, before.encode("utf-8", "surrogateescape"))
        _unlink(run.place.range_diff)
        for name in state.writing.files:
            _unlink(dist.root / name)
            drop_empty((dist.root / name).parent, dist.root / "patches")


def _unlink(file: Path) -> None:
    """Remove a file, and the temporary one that a killed writer left."""
    for one in (file, file.with_name(f".{file.name}.new")):
        one.unlink(missing_ok=True)


def _note_writing(
    run: RebaseRun, state: RebaseState, stack: Stack, target: Path, exported: Sequence[Exported]
) -> RebaseState:
    """Record what is about to be written, so that an abort can undo it. Raises LocalEdits for files in the way that are not ours."""
    file = run.dist.stack_file(stack)
    if state.writing is None:
        with scratch(SCRATCH) as folder:
            write_stack(folder, exported)
            paths = sorted(p.relative_to(folder) for p in folder.rglob("*") if p.is_file())
        there = [str(target / p) for p in paths if (target / p).exists()]
        before = _text_of(file)
        if there or (before is not None and loads(before.encode(), Stack, str(file)).value.patches):
            what = "files of the new stack are there meanwhile, and no rebase wrote them"
            raise LocalEdits(what, there or [str(file)], hint="move them elsewhere, then `patchctl rebase --continue`")
        names = tuple((target / p).relative_to(run.dist.root).as_posix() for p in paths)
        own = run.dist.root, stack.upstream, stack.name
        writing = Writing(names, before, _text_of(lock_file(*own)), _text_of(tree_list_file(*own)))
        state = write_state(run.place.hidden, replace(state, writing=writing))
    return state


def _text_of(file: Path) -> str | None:
    return file.read_text(encoding="utf-8", errors="surrogateescape") if file.exists() else None


def _manifest(state: RebaseState, names: Sequence[str], unlinted: Mapping[str, str]) -> str:
    text = rewrite_patches(state.manifest, names)
    for key, texts in (("dropped", state.dropped), ("postponed", state.postponed), ("unlinted", unlinted)):
        text = rewrite_texts(text, key, texts)
    return text


def _range_diff(run: RebaseRun, state: RebaseState) -> Path:
    """Write git's range-diff of both series beside the work tree; returns its path."""
    old, new = f"{state.old_base}..{state.old_commits[-1]}", f"{state.stages[-1].base}..{state.head}"
    git = work_of(run.place.hidden).git
    if state.head == state.stages[-1].base:  # nothing arrived, and git takes A..A for no range
        text = git("log", "--no-color", "--reverse", "--format=%h < -:  ------- %s", old)
    else:
        text = git("range-diff", "--no-color", old, new)
    replace_file(run.place.range_diff, text)
    return run.place.range_diff


def _unproven(dist: Distribution, stack: Stack, patches: Sequence[StackPatch]) -> dict[str, str]:
    evidence = Evidence(dist)
    return {p.feature: why for p in patches if (why := evidence.unproven(stack, p)) is not None}


def _requirements(patches: Sequence[StackPatch], state: RebaseState) -> list[str]:
    return [
        f"{p.feature} requires {feature}, which was {how}: take the line `Requires:` out, or leave both out"
        for p in patches
        for feature, other in p.requires
        for how, left in (("dropped", state.dropped), ("postponed", state.postponed))
        if other in (None, state.upstream) and feature in left
    ]


def changed_calls(
    reader: ObjectReader, old: str, commits: Sequence[str], patches: Sequence[StackPatch]
) -> Iterator[tuple[str, str]]:
    """(feature, line of text) for each upstream name that a patch uses and that is gone, or has another signature, between two
    patched trees: that of commit `old` and that of the last of `commits`, which the patches became."""
    if not commits:
        return
    before, after = _texts(reader, old), _texts(reader, commits[-1])
    for patch, commit in zip(patches, commits, strict=True):
        for one in changed_names(list(_sources(patch, _texts(reader, commit))), before, after):
            now = f"is {one.now}" if one.now else "is gone"
            yield (
                patch.feature,
                f"{patch.feature}: {one.file}:{one.line} uses {one.name}, which was {one.was} and {now}",
            )


def _sources(patch: StackPatch, tree: Reader) -> Iterator[PatchedSource]:
    """The Python files that a patch writes, with their content after it."""
    yield from (PatchedSource(path, data) for path, data in patch.carried.items() if path.endswith(".py"))
    for change in patch.patch.changes:
        path = os.fsdecode(change.new_path or b"")
        data = tree(path) if path.endswith(".py") else None
        if data is not None:
            yield PatchedSource(path, data, written_lines(change.hunks))


def _texts(reader: ObjectReader, commit: str) -> Reader:
    return RevisionTree(reader, commit_tree(reader, commit)).text
