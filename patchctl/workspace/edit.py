"""The work tree in which a person changes a stack: an ordinary repository with a branch, the base and a commit a patch."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from patchctl.atomic import replace_file
from patchctl.errors import LocalEdits, WrongUse
from patchctl.git.history import CommitInfo, commits_between, uncommitted
from patchctl.git.run import GitFailed
from patchctl.git.worktree import WorkTree, bring_pack, create_git_dir, import_base
from patchctl.manifest.types import Stack
from patchctl.source.types import Base
from patchctl.stack.build import COMMITTER
from patchctl.stack.memo import StackResult
from patchctl.workspace.files import TreeFiles
from patchctl.workspace.trees import Move, Tree

_KEYS = ("upstream", "stack", "base", "tip")
_LATER_KEYS = ("pin", "patches")
_EXPORTED = "patchctl-exported.json"  # newer than what the configuration has of these


def default_folder(stack: Stack) -> Path:
    """Where `edit` puts a work tree when nobody says where."""
    return Path("edit") / f"{stack.upstream}-{stack.name}"


def make_edit_tree(folder: Path, stack: Stack, base: Base, result: StackResult, digest: str = "") -> None:
    """Make the work tree, under another name until it is whole. `digest` is `series_digest` of the patch files.

    Raises LocalEdits when `folder` holds commits that were not exported, or anything else.
    """
    if folder.exists() and any(folder.iterdir()):
        _check_exported(folder, stack)
    building, old = (folder.with_name(f".{folder.name}.patchctl-{word}") for word in ("new", "old"))
    shutil.rmtree(building, ignore_errors=True)
    _fill(building, stack, base, result, digest)
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)  # a kill while it is being deleted must not leave half of it in its place
    building.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _fill(folder: Path, stack: Stack, base: Base, result: StackResult, digest: str) -> None:
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
    # Patches are the distribution's, whoever commits: the lint rule `author`.
    for key, value in zip(("user.name", "user.email"), COMMITTER, strict=True):
        work.git("config", key, value)
    work.git("config", "patchctl.pin", stack.pin.commit)
    work.git("config", "patchctl.patches", digest)


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
    if noted.get("pin", stack.pin.commit) != stack.pin.commit:
        hint = "edit it anew in another folder, and bring your commits there with `git cherry-pick`"
        raise WrongUse(f"{folder} stands on another pin than {stack.upstream}/{stack.name} has now", hint=hint)
    open_changes = uncommitted(folder)
    if not open_changes:
        _check_whole(folder)
    if open_changes:
        raise LocalEdits(
            f"{folder} has changes that are not committed",
            open_changes,
            hint="commit them; only commits become patches",
        )
    return noted["base"], commits_between(folder, noted["base"])


def _check_whole(folder: Path) -> None:
    """Raise LocalEdits when HEAD is detached below a branch, as in a bisect: the commits above it would be left out."""
    work = WorkTree(folder / ".git", folder)
    head = (folder / ".git" / "HEAD").read_text(encoding="utf-8").strip()
    if head.startswith("ref: "):
        return
    above = work.git("for-each-ref", "--format=%(refname:short)", f"--contains={head}", "refs/heads/").decode().split()
    longer = [b for b in above if work.git("rev-parse", f"refs/heads/{b}").decode().strip() != head]
    if longer:
        what = f"{folder} has no branch checked out, and {longer[0]} has commits that HEAD at {head[:12]} has not"
        raise LocalEdits(what, [str(folder)], hint=f"`git bisect reset`, or `git checkout {longer[0]}`, then export")


def check_patch_files(folder: Path, digest: str) -> None:
    """Raise LocalEdits when the patch files are not those that the work tree was made of, or exported to: an export would
    take back what somebody else changed in them. `digest` is `series_digest` of the files as they are now."""
    if _noted(folder).get("patches") not in (digest, "", None):
        hint = "edit them anew in another folder, and bring your commits there with `git cherry-pick`"
        raise LocalEdits("the patch files were changed since this work tree was made of them", [str(folder)], hint=hint)


def series_digest(series: Iterable[tuple[str, bytes, Mapping[str, bytes]]]) -> str:
    """One digest over the names, the bytes and the carried files of a stack's patches."""
    total = hashlib.sha256()
    for name, data, carried in series:
        for path, content in [(name, data), *sorted(carried.items())]:
            total.update(f"{len(path.encode())} {path} {len(content)} ".encode() + content)
    return total.hexdigest()


def _noted(folder: Path) -> dict[str, str]:
    """What `edit` wrote into the work tree's configuration; empty for a folder that it did not make."""
    work = WorkTree(folder / ".git", folder)
    if not work.git_dir.is_dir():
        return {}
    found = {}
    for key in (*_KEYS, *_LATER_KEYS):
        try:
            found[key] = work.git("config", "--local", f"patchctl.{key}").decode().strip()
        except GitFailed:
            if key in _KEYS:
                return {}
    return {**found, **_exported(work.git_dir)}


def _exported(git_dir: Path) -> dict[str, str]:
    """What the last export noted; nothing before the first."""
    try:
        held = json.loads((git_dir / _EXPORTED).read_bytes())
        return {key: held[key] for key in ("tip", "patches") if isinstance(held[key], str)}
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return {}


def _check_exported(folder: Path, stack: Stack) -> None:
    """Raise LocalEdits when the folder holds anything that is not in the patch files too."""
    noted = _noted(folder)
    if not noted:
        what = f"{folder} is there already and is no work tree of patchctl's"
        raise LocalEdits(what, [str(folder)], hint="name another folder with --dir")
    work = WorkTree(folder / ".git", folder)
    hint = f"`patchctl export {stack.upstream}` takes it over; or remove the folder"
    if work.head() != noted["tip"] or uncommitted(folder) or work.untracked():
        raise LocalEdits(f"{folder} holds work that was not exported", [str(folder)], hint=hint)
    unseen = work.ignored({g.path for g in stack.generated})
    files = TreeFiles(folder)
    unseen += [p for p, blob in work.passed_over().items() if (there := files.entry(p)) is None or there.id != blob]
    if unseen:
        what = f"{folder} holds files that git does not show: ignored ones, or edits under skip-worktree or assume-unchanged"
        raise LocalEdits(what, [os.fsdecode(p) for p in unseen], hint="move them elsewhere, or remove the folder")
    elsewhere = work.git("rev-list", "--max-count=1", "--exclude=refs/patchctl/*", "--all", "--not", noted["tip"])
    if elsewhere:
        what = f"{folder} holds commits on another branch, or in `git stash`, that were not exported"
        raise LocalEdits(what, [str(folder)], hint="remove the folder when you need them no longer")


def mark_exported(folder: Path, digest: str) -> None:
    """Note that HEAD is what the patch files hold now. In a file of ours, by rename: a git that is killed while it changes the
    configuration leaves a lock there, at which every later one stops."""
    head = WorkTree(folder / ".git", folder).git("rev-parse", "--verify", "HEAD").decode().strip()
    replace_file(folder / ".git" / _EXPORTED, json.dumps({"tip": head, "patches": digest}).encode())
