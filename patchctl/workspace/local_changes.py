"""Local changes of a tree: edited files, staged content, flags in the index, a rebase in progress, ...

A run keeps them, or stops before anything is written with a message that says how to end the state that it cannot keep.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping

from patchctl.errors import LocalEdits
from patchctl.git.locks import Operation, find_operation
from patchctl.git.worktree import SKIPPED, UNMERGED, Mark, find_git_dir
from patchctl.workspace.tree_files import TreeFiles
from patchctl.workspace.trees import Tree


def edits_in(tree: Tree, commit: str, marks: Mapping[bytes, Mark]) -> list[bytes]:
    """Files that differ from `commit`, on disk (by git's stat cache, then by content) or in the index.

    `marks` are the index's: git does not look at a file that has one.
    """
    changed = tree.work.candidates(commit)
    edited = tree.differing(tree.files(commit), {*changed, *marks}) if changed or marks else []
    # Of an --in-place checkout we read our own index: what its owner staged stays staged.
    staged = tree.work.staged(commit) if tree.kind == "managed" else []
    return sorted({*edited, *staged})


def staged_during(tree: Tree, source: str | None, target: str | None) -> list[bytes]:
    """Paths staged since a run was interrupted: their index entry is neither that of `source` nor that of `target`."""
    if tree.kind != "managed" or source is None or target is None:
        return []
    return sorted({*tree.work.staged(source)} & {*tree.work.staged(target)})


def marks_in(tree: Tree) -> dict[bytes, Mark]:
    """The flags in the index by path; empty for an --in-place checkout, whose index of ours no user touches."""
    return tree.work.marks() if tree.kind == "managed" else {}


def operation_in(tree: Tree) -> Operation | None:
    """The git operation in progress in the tree, for an --in-place checkout in its owner's repository; None where there is none."""
    git_dir = tree.git_dir if tree.kind == "managed" else find_git_dir(tree.folder)
    return find_operation(git_dir) if git_dir else None


def refuse_operation(tree: Tree) -> None:
    """Raise LocalEdits while a git operation is in progress in the tree."""
    operation = operation_in(tree)
    if operation is not None:
        what = f"{operation.name} is in progress in {tree.folder}"
        raise LocalEdits(what, [str(operation.mark)], hint=f"end it there first: {operation.way_out}")


def settled_marks(tree: Tree) -> dict[bytes, Mark]:
    """`marks_in`. Raises LocalEdits for what no run can keep, even with --stash: a git operation in progress, files in conflict,
    a sparse checkout."""
    refuse_operation(tree)
    marks = marks_in(tree)
    unmerged = [p for p, mark in marks.items() if mark.tag == UNMERGED]
    if unmerged:
        hint = "settle them there: `git add FILE`, or `git checkout HEAD FILE`"
        raise LocalEdits(f"files of {tree.name} are in conflict in its index", tree.shown(unmerged), hint=hint)
    files = TreeFiles(tree.folder)
    absent = [p for p, mark in marks.items() if mark.tag in SKIPPED and files.digest(p) is None]
    if absent:
        hint = (
            f"`git -C {tree.folder} sparse-checkout disable` brings them; or `git update-index --no-skip-worktree FILE`"
        )
        raise LocalEdits(f"{tree.folder} is a sparse checkout: files are not there", tree.shown(absent), hint=hint)
    return marks


def refuse_unkeepable(tree: Tree, paths: Iterable[bytes]) -> None:
    """Raise LocalEdits if any of these paths, or a file below one, cannot be kept on a branch: FIFOs, sockets, devices,
    repositories, unreadable files."""
    files, top = TreeFiles(tree.folder), os.fsencode(tree.folder) + b"/"
    bad: set[bytes] = set()
    for path in {next(iter(files.not_folders(p)), p) for p in paths}:
        folder = os.path.isdir(top + path) and not os.path.islink(top + path)
        bad |= {p for p in (files.everything(path) if folder else [path]) if not _keepable(top + p)}
    if bad:
        what = f"files of {tree.name} cannot be kept on a branch: they are no files, belong to a repository, or cannot be read"
        raise LocalEdits(what, tree.shown(sorted(bad)), hint="move them away")


def _keepable(file: bytes) -> bool:
    try:
        mode = os.lstat(file).st_mode
    except OSError:  # a deletion can be kept
        return True
    return stat.S_ISLNK(mode) or (stat.S_ISREG(mode) and os.access(file, os.R_OK, effective_ids=True))
