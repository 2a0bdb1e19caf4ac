"""How the objects that a change needs get from the cache into the tree's own repository: whole, or not at all."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from patchctl.errors import BrokenRepository, SourceMismatch
from patchctl.git.packfiles import bring_pack
from patchctl.git.worktree import WorkTree, create_git_dir, import_base
from patchctl.source.cache import REFRESH
from patchctl.stack.memo import forget
from patchctl.stack.plan import PlannedStack
from patchctl.workspace.changes import Part
from patchctl.workspace.installed import keep_record
from patchctl.workspace.journal import TreeChange, new_git_dir
from patchctl.workspace.proof import Proof, prove
from patchctl.workspace.subjects import note_tree
from patchctl.workspace.trees import Move, Tree


def arrived(workspace: Path, part: Part) -> Proof:
    """Bring the objects in and prove the tree's move with them. Changes nothing that anyone sees.

    Damage in the tree's own repository is mended from the cache where that can be. Raises SourceMismatch when what came from
    the cache is damaged, and leaves nothing of it; BrokenRepository when the tree's own objects are.
    """
    assert part.planned is not None
    change, planned = part.change, part.planned
    tree = change.tree(workspace)
    git_dir = tree.git_dir
    if part.fresh:
        git_dir = new_git_dir(workspace, change.name) if change.kind == "managed" else git_dir
        shutil.rmtree(git_dir, ignore_errors=True)
        create_git_dir(git_dir, change.generated, file_modes=change.kind == "managed")
        note_tree(git_dir, tree, change.folder, change.base, change.target)
        if change.record:
            keep_record(tree)
    had = set(_packs(git_dir))
    try:
        proof = _proven(tree, change, git_dir, planned)
    except (BrokenRepository, SourceMismatch) as damage:
        if not part.fresh and isinstance(damage, BrokenRepository):
            with contextlib.suppress(
                BrokenRepository
            ):  # where only what is there now is damaged, the way out is not barred
                return prove(tree, change.move)
        forget(planned.result)
        for file in set(_packs(git_dir)) - had:
            file.unlink()
        if not part.fresh:
            prove(tree, Move(change.base, change.source))  # raises where its own objects are damaged
        what = f"{planned.upstream}: what came from the cache is damaged: {damage.what}"
        raise SourceMismatch(what, where=str(planned.base.repo), hint=f"{REFRESH}; then apply again") from damage
    if part.fresh and change.kind == "into":
        tree.work.write_index(change.base)
    return proof


def _proven(tree: Tree, change: TreeChange, git_dir: Path, planned: PlannedStack) -> Proof:
    new = not WorkTree(git_dir, tree.folder).has(change.base)
    try:
        _bring(git_dir, planned, base=new)
        return prove(tree, change.move, change.base, git_dir, whole=new)
    except BrokenRepository:
        if new:
            raise
    _bring(git_dir, planned, base=True, anew=True)  # what the cache has may be whole
    return prove(tree, change.move, change.base, git_dir, whole=True)


def _bring(git_dir: Path, planned: PlannedStack, *, base: bool, anew: bool = False) -> None:
    if base:
        import_base(git_dir, planned.base.repo, anew=anew)
    if planned.result.pack is not None:
        bring_pack(planned.result.pack, git_dir / "objects" / "pack", anew=anew)


def _packs(git_dir: Path) -> list[Path]:
    return sorted((git_dir / "objects" / "pack").glob("pack-*"))
