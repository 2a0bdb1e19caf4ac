"""The work tree in which a person changes a stack: an ordinary repository with a branch, the base and a commit a patch."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from patchctl.errors import LocalEdits, WrongUse
from patchctl.git.history import CommitInfo, commits_between, uncommitted
from patchctl.git.run import GitFailed
from patchctl.git.worktree import WorkTree, bring_pack, create_git_dir, import_base
from patchctl.manifest.types import Stack
from patchctl.source.types import Base
from patchctl.stack.memo import StackResult
from patchctl.workspace.trees import Move, Tree

_KEYS = ("upstream", "stack", "base", "tip")


def default_folder(stack: Stack) -> Path:
    """Where `edit` puts a work tree when nobody says where."""
    return Path("edit") / f"{stack.upstream}-{stack.name}"


def make_edit_tree(folder: Path, stack: Stack, base: Base, result: StackResult) -> None:
    """Make the work tree. Raises LocalEdits when `folder` holds commits that were not exported, or anything else."""
    if folder.exists() and any(folder.iterdir()):
        _remove_if_unchanged(folder, stack)
    make_object_store(folder / ".git", base, result, [g.path for g in stack.generated])
    tree = Tree(folder.parent, folder.name, "managed", folder.name)
    tree.carry_out(tree.plan(Move(None, result.tip_commit)))
    tree.place_generated({g.path: g.content.encode() for g in stack.generated})
    work = tree.work
    work.write_index(result.tip_commit)
    branch = f"refs/heads/patchctl/{stack.name}"
    work.git("update-ref", branch, result.tip_commit)
    work.git("symbolic-ref", "HEAD", branch)
    work.set_refs(base.commit, result.tip_commit)
    for key, value in zip(_KEYS, (stack.upstream, stack.name, base.commit, result.tip_commit), strict=True):
        work.git("config", f"patchctl.{key}", value)


def make_object_store(git_dir: Path, base: Base, result: StackResult, exclude: Sequence[str] = ()) -> Path:
    """A new git directory with every object of a base and of a stack on it; returns it."""
    create_git_dir(git_dir, exclude)
    import_base(git_dir, base.repo)
    if result.pack is not None:
        bring_pack(result.pack, git_dir / "objects" / "pack")
    return git_dir


def read_edit_tree(folder: Path, stack: Stack) -> tuple[str, list[CommitInfo]]:
    """The base commit and the commits on it. Raises WrongUse, and LocalEdits when changes are not committed."""
    noted = _noted(folder)
    if (noted.get("upstream"), noted.get("stack")) != (stack.upstream, stack.name):
        known = f"{noted.get('upstream')}/{noted.get('stack')}" if noted else "nothing that patchctl made"
        raise WrongUse(
            f"{folder} holds {known}, not {stack.upstream}/{stack.name}", hint="`patchctl edit NAME` makes a work tree"
        )
    open_changes = uncommitted(folder)
    if open_changes:
        raise LocalEdits(
            f"{folder} has changes that are not committed",
            open_changes,
            hint="commit them; only commits become patches",
        )
    return noted["base"], commits_between(folder, noted["base"])


def _noted(folder: Path) -> dict[str, str]:
    work = WorkTree(folder / ".git", folder)
    if not work.git_dir.is_dir():
        return {}
    found = {}
    for key in _KEYS:
        try:
            found[key] = work.git("config", "--local", f"patchctl.{key}").decode().strip()
        except GitFailed:
            return {}
    return found


def _remove_if_unchanged(folder: Path, stack: Stack) -> None:
    noted = _noted(folder)
    if not noted:
        raise LocalEdits(
            f"{folder} is there already and is no work tree of patchctl's",
            [str(folder)],
            hint="name another folder with --dir",
        )
    work = WorkTree(folder / ".git", folder)
    if work.head() != noted["tip"] or uncommitted(folder) or work.untracked():
        hint = f"`patchctl export {stack.upstream}` takes it over; or remove the folder"
        raise LocalEdits(f"{folder} holds work that was not exported", [str(folder)], hint=hint)
    shutil.rmtree(folder)


def mark_exported(folder: Path) -> None:
    """Note that HEAD is what the patch files hold now."""
    work = WorkTree(folder / ".git", folder)
    head = work.head()
    if head is not None:
        work.git("config", "patchctl.tip", head)
