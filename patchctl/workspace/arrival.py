"""How the objects that a change needs get from the cache into the tree's own repository: whole, or not at all."""

from __future__ import annotations

import shutil
from pathlib import Path

from patchctl.errors import BrokenRepository, SourceMismatch
from patchctl.git.worktree import bring_pack, create_git_dir, import_base
from patchctl.source.cache import REFRESH
from patchctl.stack.memo import forget
from patchctl.stack.plan import PlannedStack
from patchctl.workspace.changes import Part
from patchctl.workspace.installed import keep_record
from patchctl.workspace.journal import new_git_dir
from patchctl.workspace.proof import Proof, prove
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
        if change.record:
            keep_record(tree)
    had = set(_packs(git_dir))
    try:
        _bring(git_dir, planned)
        proof = _proven(tree, change.move, git_dir, planned)
    except (BrokenRepository, SourceMismatch) as damage:
        forget(planned.result)
        for file in set(_packs(git_dir)) - had:
            file.unlink()
        if not part.fresh and isinstance(damage, BrokenRepository):
            prove(tree, Move(change.base, change.source))  # its own objects are whole, or this raises
        what = f"{planned.upstream}: what came from the cache is damaged: {damage.what}"
        raise SourceMismatch(what, where=str(planned.base.repo), hint=f"{REFRESH}; then apply again") from damage
    if part.fresh and change.kind == "into":
        tree.work.write_index(change.base)
    return proof


def _proven(tree: Tree, move: Move, git_dir: Path, planned: PlannedStack) -> Proof:
    try:
        return prove(tree, move, git_dir)
    except BrokenRepository:
        _bring(git_dir, planned, anew=True)  # what the cache has may be whole
        return prove(tree, move, git_dir)


def _bring(git_dir: Path, planned: PlannedStack, *, anew: bool = False) -> None:
    import_base(git_dir, planned.base.repo, anew=anew)
    if planned.result.pack is not None:
        bring_pack(planned.result.pack, git_dir / "objects" / "pack", anew=anew)


def _packs(git_dir: Path) -> list[Path]:
    return sorted((git_dir / "objects" / "pack").glob("pack-*"))
