"""What killed runs leave beside the journal, and how it goes away. Called under the workspace's lock only."""

from __future__ import annotations

import contextlib
import shutil
import time
from pathlib import Path

from patchctl.git.run import GitFailed
from patchctl.git.worktree import UNFINISHED_PACKS, WorkTree
from patchctl.workspace.state import FOLDER, UNFINISHED, State
from patchctl.workspace.trees import Tree

# A git that a killed run had started may still be at work; longer than any of our commands holds a lock.
_LOCK_SECONDS = 5.0


def sweep(workspace: Path, state: State | None) -> dict[str, Path]:
    """Drop what no journal and no state speaks of: repositories in preparation, and those of forgotten checkouts.

    One of the latter that holds kept edits is moved to kept/ instead; returns the new place of each by its upstream.
    """
    own = workspace / FOLDER
    shutil.rmtree(own / "new", ignore_errors=True)
    for name in UNFINISHED:
        (own / name).unlink(missing_ok=True)
    for name, tree in (state.trees if state else {}).items():
        packs = Tree.of(workspace, name, tree).git_dir / "objects" / "pack"
        for left in (found for pattern in UNFINISHED_PACKS for found in packs.glob(pattern)):
            left.unlink()
    kept: dict[str, Path] = {}
    used = {name for name, tree in state.trees.items() if tree.kind == "into"} if state else set()
    for git_dir in sorted((own / "into").glob("*.git")):
        name = git_dir.name.removesuffix(".git")
        if name not in used:
            place = _let_go(own, name, git_dir)
            if place is not None:
                kept[name] = place
    with contextlib.suppress(OSError):  # it is not there, or some are in use
        (own / "into").rmdir()
    return kept


def _let_go(own: Path, name: str, git_dir: Path) -> Path | None:
    if not _has_branches(git_dir):
        shutil.rmtree(git_dir, ignore_errors=True)
        return None
    (own / "kept").mkdir(exist_ok=True)
    number = 1
    while (place := own / "kept" / f"{name}-{number}.git").exists():
        number += 1
    git_dir.rename(place)
    return place


def _has_branches(git_dir: Path) -> bool:
    try:
        return bool(WorkTree(git_dir, git_dir).git("for-each-ref", "refs/heads/").strip())
    except GitFailed:  # half deleted, or half made: it was never in use
        return False


def clear_git_locks(git_dir: Path) -> None:
    """Remove the locks of a git that was killed with the run that had started it, so that ours can take them.

    One that goes by itself in time belonged to a git that was still at work.
    """
    names = ("index.lock", "HEAD.lock", "packed-refs.lock", "shallow.lock", "index.patchctl-snapshot.lock")
    locks = [git_dir / name for name in names] + list((git_dir / "refs" / "patchctl").glob("*.lock"))
    end = time.monotonic() + _LOCK_SECONDS
    while any(lock.exists() for lock in locks) and time.monotonic() < end:
        time.sleep(0.1)
    for lock in locks:
        lock.unlink(missing_ok=True)
