"""What killed runs leave beside the journal, and how it goes away. Called under the workspace's lock only."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable
from pathlib import Path

from patchctl.git.locks import drop_own
from patchctl.git.worktree import UNFINISHED_PACKS, find_git_dir, object_store
from patchctl.workspace.state import FOLDER, UNFINISHED, State
from patchctl.workspace.trees import Tree


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
    """By its files: git may be unable to read what a person still can."""
    packed = git_dir / "packed-refs"
    if packed.is_file() and b" refs/heads/" in packed.read_bytes():
        return True
    return any(p.is_file() for p in (git_dir / "refs" / "heads").rglob("*"))


def drop_own_locks(trees: Iterable[Tree]) -> None:
    """Take away the locks that a killed run of ours left in these trees' repositories, and in their owners'."""
    places = []
    for tree in trees:
        places.append(tree.git_dir)
        owner = find_git_dir(tree.folder) if tree.kind == "into" else None
        if owner is not None:
            places.append(object_store(owner).parent)
    drop_own(places)
