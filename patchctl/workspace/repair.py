"""`patchctl repair`: brings a workspace that no other verb can use back to its bases.

Every user file stays where it was or moves into a backup folder; nothing is overwritten.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from patchctl.doc import Doc, Spread
from patchctl.errors import LocalEdits, WrongUse
from patchctl.git.catfile import ObjectReader
from patchctl.workspace.state import FOLDER, TreeState, WorkspaceState, save_json
from patchctl.workspace.tree_repair import (
    Backup,
    LastKnown,
    RepairTarget,
    TreeRepair,
    WorkspaceProblem,
    diagnose,
    last_known,
    locks,
    repair_marker,
    repair_targets,
)
from patchctl.workspace.trees import commit_tree
from patchctl.workspace.workspace_lock import clean_up, drop_own_locks, workspace_lock


@dataclass(frozen=True)
class RepairedTree:
    """A repaired tree."""

    name: Annotated[str, Doc("upstream name")]
    folder: Annotated[str, Doc("path of the tree")]
    outcome: Annotated[
        str,
        Doc(
            "`base` (reset to its base), `aside` (moved away whole), `left` (`--in-place` checkout, unchanged) or"
            " `gone` (already removed by its owner)"
        ),
    ]
    commit: Annotated[str, Doc("base commit")]


@dataclass(frozen=True)
class Repair:
    """What `repair` found and did; empty for a healthy workspace."""

    workspace: Annotated[str, Doc("workspace path")]
    found: Annotated[tuple[WorkspaceProblem, ...], Doc("problems found")]
    aside: Annotated[str | None, Doc("folder that files were moved to; null if none were")]
    kept: Annotated[tuple[str, ...], Doc("moved or backed-up files, by their new path")]
    trees: Annotated[
        tuple[RepairedTree, ...], Doc("result for each tree; empty in a dry run, or if only locks were moved")
    ]

    @property
    def healthy(self) -> Annotated[bool, Doc("true if nothing was found or changed")]:
        return not self.found


@dataclass(frozen=True)
class RepairOutput:
    """What `repair` prints."""

    done: Annotated[Repair, Spread()]
    dry_run: Annotated[bool, Doc("true if nothing was written")]


def preview_repair(workspace: Path) -> Repair:
    """Find what `repair` would fix. Takes no lock, writes nothing."""
    _check_is_one(workspace)
    last = last_known(workspace)
    return Repair(str(workspace), tuple(_problems(workspace, last, repair_targets(workspace, last))), None, (), ())


def repair(workspace: Path, cache: Path) -> Repair:
    """Bring every tree to its base, using objects of the workspace or the cache; without either, move the tree to the backup.

    Safe to run again after a kill at any point. Raises WrongUse if there is no workspace, WorkspaceBusy, and LocalEdits
    while git runs in a tree.
    """
    _check_is_one(workspace)
    with workspace_lock(workspace):
        last = last_known(workspace)
        trees = repair_targets(workspace, last)
        drop_own_locks([target.tree(workspace) for target in trees])
        found = tuple(_problems(workspace, last, trees))
        if not found:
            return Repair(str(workspace), (), None, (), ())
        for target in trees:
            _check_no_git(target, workspace)
        repair_marker(workspace).touch()
        backup = Backup(workspace)
        if {problem.kind for problem in found} == {"lock"}:
            done: tuple[RepairedTree, ...] = ()  # the trees stay applied
            for target, lock in ((t, lock) for t in trees for lock in locks(t.tree(workspace))):
                backup.take(lock, f"{target.name}.git", lock.name)
        else:
            done = _to_base(workspace, last, trees, backup, cache)
        repair_marker(workspace).unlink()
        kept = tuple(str(path) for path in backup.kept)
        return Repair(str(workspace), found, str(backup.folder) if kept else None, kept, done)


def _check_is_one(workspace: Path) -> None:
    if not (workspace / FOLDER).is_dir():
        raise WrongUse(f"{workspace} is no workspace", hint="name it with --workspace DIR")


def _problems(workspace: Path, last: LastKnown, trees: Sequence[RepairTarget]) -> Iterator[WorkspaceProblem]:
    for error in last.errors:
        file = error.where.file if error.where else str(workspace)
        yield WorkspaceProblem("journal" if file.endswith("journal.json") else "state", file, error.what)
    if repair_marker(workspace).exists():
        yield WorkspaceProblem("repair", str(repair_marker(workspace)), "a repair was interrupted")
    if last.journal is not None:
        place = str(workspace / FOLDER / "journal.json")
        yield WorkspaceProblem(
            "interrupted", place, f"{last.journal.verb} was interrupted; the next one would finish it"
        )
    for target in trees:
        yield from diagnose(workspace, target)


def _check_no_git(target: RepairTarget, workspace: Path) -> None:
    """Raise LocalEdits while git runs in the tree: its lock is not stale, however old it is."""
    tree = target.tree(workspace)
    inside = os.path.realpath(tree.folder)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "comm").read_text().strip() != "git":
                continue
            command = (process / "cmdline").read_bytes().split(b"\0")
            place = os.path.realpath(os.readlink(process / "cwd"))
        except OSError:  # it ended, or belongs to another user
            continue
        if place == inside or place.startswith(f"{inside}/") or f"--git-dir={tree.git_dir}".encode() in command:
            what = f"a git is at work in {tree.name} (process {process.name})"
            raise LocalEdits(what, [str(tree.folder)], hint="wait for it to end, or end it, then repair")


def _to_base(
    workspace: Path, last: LastKnown, trees: Sequence[RepairTarget], backup: Backup, cache: Path
) -> tuple[RepairedTree, ...]:
    own = workspace / FOLDER
    states: dict[str, TreeState] = {}
    done = []
    for target in trees:
        tree_repair = TreeRepair(workspace, target, backup, cache)
        outcome = tree_repair.run()
        done.append(RepairedTree(target.name, str(tree_repair.tree.folder), outcome, target.base))
        if outcome == "base" and target.kind == "managed":
            states[target.name] = _at_base(tree_repair)
    for error in last.errors:
        if error.where is not None and os.path.lexists(error.where.file):
            backup.copy(Path(error.where.file), FOLDER, Path(error.where.file).name)
    roots = [s.root for s in (last.state, last.journal.after if last.journal else None) if s is not None]
    state = WorkspaceState(None, (roots or [""])[0], (), states, ())
    save_json(own / "state.json", state.as_json())
    (own / "journal.json").unlink(missing_ok=True)  # last, so that until here the repair can be run again
    for place in clean_up(workspace, state).values():
        backup.kept.append(place)
    return tuple(done)


def _at_base(tree_repair: TreeRepair) -> TreeState:
    target = tree_repair.target
    with ObjectReader(tree_repair.tree.git_dir, target.name) as reader:
        tree = commit_tree(reader, target.base)
    old = target.state
    return TreeState(
        kind=target.kind,
        folder=target.folder,
        stack=old.stack if old else "unknown",
        form=old.form if old else "git",
        origin=old.origin if old else "",
        base_commit=target.base,
        base_tree=tree,
        tip_commit=target.base,
        tip_tree=tree,
        locked=False,
        generated=tree_repair.generated,
    )
