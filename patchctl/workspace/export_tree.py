"""Exports an edit tree: its commits back into patch files, and the stack's list of them in its manifest."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from patchctl.atomic import replace_file
from patchctl.errors import WrongUse
from patchctl.git.catfile import ObjectReader
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.rewrite import rewrite_list
from patchctl.manifest.types import Stack
from patchctl.source.obtain import obtain
from patchctl.source.types import Base, SourceOptions
from patchctl.stack.export import Exported, compare_stack, export_commits, remove_gone, write_stack
from patchctl.stack.patches import StackPatch
from patchctl.stack.plan import build_stack, load_patches
from patchctl.stack.result_cache import StackResult
from patchctl.terminal.progress import SilentProgress
from patchctl.terminal.text import patch_count
from patchctl.workspace.edit import (
    check_patch_files,
    default_folder,
    end_export,
    is_half_exported,
    make_edit_tree,
    make_object_store,
    mark_exported,
    note_export,
    read_edit_tree,
    series_digest,
)
from patchctl.workspace.trees import commit_tree


def export_tree(
    dist: Distribution, stack: Stack, folder: Path | None, options: SourceOptions, *, check: bool
) -> tuple[list[Exported], list[str]]:
    """Return the stack's patches as its work tree has them, and what differs; write them unless `check`.

    With `check` and no work tree, build the stack in memory instead.
    """
    patches = load_patches(dist, stack)
    tree = (folder or default_folder(stack)).absolute()
    if not tree.exists() and not check:
        hint = f"`patchctl edit {stack.upstream}/{stack.name}` makes one, or name it with --dir"
        raise WrongUse(f"there is no work tree at {tree}", hint=hint)
    exported = _from_tree(tree, stack, patches) if tree.exists() else _from_memory(dist, stack, patches, options)
    target = dist.root / "patches" / stack.upstream / stack.name
    own = [p for p in patches if p.file.parent.parent == target]
    ours = _without_inherited(stack, exported, [p for p in patches if p.file.parent.parent != target])
    changes = compare_stack(target, ours, own)
    if not check:
        changes += _write(dist, stack, tree, patches, exported, ours)
    return exported, changes


def _without_inherited(stack: Stack, exported: list[Exported], inherited: list[StackPatch]) -> list[Exported]:
    """Return this stack's own patches. Raises WrongUse if a patch of the stack it extends was changed."""
    given = {e.name: (e.data, e.carried) for e in exported}
    if any(given.get(p.file.name) != (p.data, p.carried) for p in inherited):
        what = f"a patch of the stack that {stack.name} extends was changed"
        raise WrongUse(what, hint=f"edit {stack.upstream}/{stack.extends}")
    names = {p.file.name for p in inherited}
    return [e for e in exported if e.name not in names]


def _write(
    dist: Distribution,
    stack: Stack,
    tree: Path,
    patches: list[StackPatch],
    exported: list[Exported],
    ours: list[Exported],
) -> list[str]:
    """Write files, then the manifest's list, then remove what is gone, so that a killed run leaves no listed file missing."""
    before = [(p.file.name, p.data, p.carried) for p in patches]
    after = [(e.name, e.data, e.carried) for e in exported]
    if not is_half_exported(tree, before):
        check_patch_files(tree, series_digest(before))
    target = dist.root / "patches" / stack.upstream / stack.name
    note_export(tree, before, after)
    write_stack(target, ours)
    changes = _write_list(dist.stack_file(stack), stack, [e.name for e in ours])
    remove_gone(target, ours, [p for p in patches if p.file.parent.parent == target])
    mark_exported(tree, series_digest(after))
    end_export(tree)
    return changes


def _from_tree(tree: Path, stack: Stack, patches: list[StackPatch]) -> list[Exported]:
    base, commits = read_edit_tree(tree, stack)
    with ObjectReader(tree / ".git") as reader:
        return export_commits(reader, commit_tree(reader, base), commits, patches)


def _from_memory(dist: Distribution, stack: Stack, patches: list[StackPatch], options: SourceOptions) -> list[Exported]:
    """Build the stack in a temporary repository and export it from there."""
    base, result = _build(dist, stack, patches, options)
    with tempfile.TemporaryDirectory(prefix="patchctl-export-") as scratch:
        folder = Path(scratch) / "tree"
        make_edit_tree(folder, stack, base, result)
        return _from_tree(folder, stack, patches)


def _write_list(manifest: Path, stack: Stack, names: list[str]) -> list[str]:
    """Write the patches' names into the stack's manifest, and change no other line of it."""
    own = [n for n in names if n not in stack.replace.values()]
    if own == stack.patches:
        return []
    text = manifest.read_text(encoding="utf-8")
    replace_file(manifest, rewrite_list(text, "patches", own).encode())
    return [f"{manifest.name} lists {patch_count(len(own))}"]


@contextmanager
def built(
    dist: Distribution, stack: Stack, patches: list[StackPatch], options: SourceOptions, left_out: Sequence[StackPatch]
) -> Iterator[tuple[ObjectReader, StackResult]]:
    """Build a stack in a temporary repository, and yield a reader of all objects of its base and commits."""
    base, result = _build(dist, stack, patches, options, left_out)
    with tempfile.TemporaryDirectory(prefix="patchctl-export-") as scratch:
        store = make_object_store(Path(scratch) / "objects.git", base, result)
        with ObjectReader(store) as reader:
            yield reader, result


def _build(
    dist: Distribution,
    stack: Stack,
    patches: list[StackPatch],
    options: SourceOptions,
    left_out: Sequence[StackPatch] = (),
) -> tuple[Base, StackResult]:
    base = obtain(dist.upstream(stack.upstream), stack, options, SilentProgress())
    return base, build_stack(base, patches, left_out, options.cache)
