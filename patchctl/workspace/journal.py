"""The journal: what a run is about to do, on disk before it does it, so that the next run can finish it after a kill.

The journal names commits whose objects are in the trees' repositories already, and the state that holds afterwards.
Finishing is idempotent: every file is still as before, or already as after, or was edited by a user in between.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from patchctl.errors import BadManifest, BrokenRepository, LocalEdits, Where
from patchctl.git.catfile import ObjectReader
from patchctl.git.index import IndexChange, NotPlain
from patchctl.git.pack import bring_pack
from patchctl.git.worktree import WorkTree, add_exclude, find_git_dir, object_store
from patchctl.language import message
from patchctl.manifest.typeinfo import build
from patchctl.manifest.types import ObjectId
from patchctl.os_errors import as_user_error
from patchctl.workspace.checks import VerifiedMove, check_places, verify_objects
from patchctl.workspace.pip_record import restore_bytecode, save_bytecode, write_record
from patchctl.workspace.state import (
    FOLDER,
    FileText,
    Utf8,
    WorkspaceState,
    check_generated,
    check_place,
    save_json,
    state_from_json,
)
from patchctl.workspace.tree_files import TreeFiles
from patchctl.workspace.trees import Move, Sides, Steps, Tree, commit_tree, note_modes, set_modes
from patchctl.workspace.workspace_lock import drop_own_locks

VERSION = 1
_FILE = "journal.json"
_VERBS = ("apply", "revert")
REPAIR = message("`patchctl repair` keeps every file aside and makes a clean base")
_INSTEAD = message("name a workspace of your own with --workspace")


@dataclass(frozen=True)
class TreeChange:
    """One tree's part of a run. `generated` maps a path to the text to be placed, `known` what the state says is ours.

    `source` is None for a new tree, `target` for one that is taken away again; `forget` ends our keeping of an `--in-place`
    checkout. `record` as in the state; `before` maps a path of `known` to its text, where that is known.
    """

    name: str
    kind: str
    folder: FileText
    base: ObjectId
    source: ObjectId | None
    target: ObjectId | None
    stash: ObjectId | None = None
    generated: dict[FileText, Utf8] = field(default_factory=dict)
    known: dict[FileText, Utf8] = field(default_factory=dict)
    forget: bool = False
    record: FileText = ""
    before: dict[FileText, Utf8] = field(default_factory=dict)

    @property
    def move(self) -> Move:
        """Its part that tracked files have."""
        return Move(self.source, self.target, self.stash)

    def tree(self, workspace: Path) -> Tree:
        """The tree that it is for."""
        return Tree(workspace, self.name, self.kind, self.folder, self.record)

    def taken_back(self, known: bool) -> TreeChange:
        """The change that undoes this one, however much of it was done. `known`: the tree was in the state before."""
        placed = {path: hashlib.sha256(text.encode()).hexdigest() for path, text in self.generated.items()}
        return replace(
            self,
            source=self.target,
            target=self.source,
            generated=self.before,
            known={**self.known, **placed},
            before=self.generated,
            forget=self.kind == "into" and not known,
        )


@dataclass(frozen=True)
class Journal:
    """A run: its verb, its changes in order, and the state after it (less what only the writing can tell)."""

    verb: str
    changes: tuple[TreeChange, ...]
    after: WorkspaceState


def taken_back(journal: Journal, before: WorkspaceState | None) -> Journal:
    """The run that undoes this one, back to the state before it."""
    state = before or WorkspaceState(None, journal.after.root)
    changes = tuple(change.taken_back(change.name in state.trees) for change in journal.changes)
    return Journal(journal.verb, changes, state)


def new_git_dir(workspace: Path, name: str) -> Path:
    """Where the git directory of a new managed tree is prepared, before the journal names it."""
    return workspace / FOLDER / "new" / f"{name}.git"


def new_tree(workspace: Path, name: str) -> Path:
    """Where the files of a new managed tree wait."""
    return workspace / FOLDER / "new" / name


def write_journal(workspace: Path, journal: Journal) -> None:
    """Put the journal on disk. From here on the run will be finished."""
    data = {
        "version": VERSION,
        "verb": journal.verb,
        "changes": [asdict(c) for c in journal.changes],
        "after": journal.after.as_json(),
    }
    save_json(workspace / FOLDER / _FILE, data)


def read_journal(workspace: Path) -> Journal | None:
    """The journal of a run that did not end, or None. Raises BadManifest when it cannot be used."""
    file = workspace / FOLDER / _FILE
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        if data["version"] != VERSION:
            raise ValueError(f"version {VERSION} was expected and {data['version']!r} found")
        if data["verb"] not in _VERBS:
            raise ValueError(f"there is no verb {data['verb']!r}")
        changes = tuple(_change(c) for c in data["changes"])
        after = state_from_json(data["after"], file)
        return Journal(data["verb"], changes, after)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise as_user_error(error, message("the journal cannot be read"), _INSTEAD, workspace) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        hint = message("it is written in one piece, so someone changed it: {todo}", todo=REPAIR)
        raise BadManifest(
            message("the journal cannot be used: {error}", error=error), where=Where(str(file)), hint=hint
        ) from error


def _change(data: dict[str, Any]) -> TreeChange:
    change: TreeChange = build(TreeChange, data)
    check_place(change.name, change.kind, change.folder, change.record)
    if (change.source is None and change.target is None) or (change.target is None and change.kind != "managed"):
        raise ValueError(f"the change of {change.name} names no commit")
    check_generated(change.generated, change.known, change.before)
    return change


def place_repositories(workspace: Path, journal: Journal) -> None:
    """Give every new managed tree the files and the git directory that were prepared for it."""
    for change in journal.changes:
        tree = change.tree(workspace)
        if change.kind == "managed" and not tree.git_dir.is_dir():
            prepared = new_git_dir(workspace, change.name)
            if not prepared.is_dir():
                raise LocalEdits(
                    message("the repository of {name} is gone", name=change.name), [str(tree.git_dir)], hint=REPAIR
                )
            if not os.path.lexists(tree.folder):
                with contextlib.suppress(OSError):  # another process has made it: files are written into it one by one
                    os.rename(new_tree(workspace, change.name), tree.folder)
            tree.folder.mkdir(parents=True, exist_ok=True)
            os.replace(prepared, tree.git_dir)


def finish(workspace: Path, journal: Journal, verified: Mapping[str, VerifiedMove]) -> WorkspaceState:
    """Carry the journal out, or what is left of it; write the state; drop the journal. `verified`: of each tree's move."""
    place_repositories(workspace, journal)
    # All trees or none: an edit in the last one has to stop the run before the first.
    steps = [_plan(workspace, change, verified[change.name]) for change in journal.changes]
    after = journal.after
    for change, todo in zip(journal.changes, steps, strict=True):
        placed = _finish_tree(workspace, change, todo)
        if change.name in after.trees:
            tree_state = replace(after.trees[change.name], generated=placed)
            after = replace(after, trees={**after.trees, change.name: tree_state})
    save_json(workspace / FOLDER / "state.json", after.as_json())
    (workspace / FOLDER / _FILE).unlink()
    return after


def _plan(workspace: Path, change: TreeChange, verified: VerifiedMove) -> Steps:
    tree = change.tree(workspace)
    if verified.written is not None and not new_tree(workspace, change.name).exists():
        verified.written.move_to(tree.folder)
        return Steps(verified.sides, (), written=verified.written)
    steps = tree.steps(verified.sides)
    edited = tree.edited_generated(change.generated, change.known)
    if any(path not in steps.sides.kept for path in edited):
        raise tree.refusal(edited)
    return steps


def _finish_tree(workspace: Path, change: TreeChange, steps: Steps) -> dict[str, str]:
    tree = change.tree(workspace)
    if change.generated:
        add_exclude(tree.git_dir, change.generated)
    base = tree.files(change.base) if change.record else {}
    if change.record:
        save_bytecode(tree, base, steps.sides.before, steps.todo)
    note_modes(tree, steps.sides)
    files = tree.carry_out(steps)
    set_modes(tree, steps.sides)
    tree.remove_generated(change.known, keep=change.generated)
    placed = tree.place_generated({p: t.encode() for p, t in change.generated.items()})
    if change.target is None:
        _put_away(workspace, tree)
        return placed
    if change.record:
        restore_bytecode(tree, base, steps.sides.after)
        write_record(tree, change.base, change.target, placed)
    wrong = _write_index(tree, change, steps, files)
    wrong = tree.differing(steps.sides.after, wrong) if wrong else []
    if wrong:
        what = message("files of {name} are not as they were written: they changed during the run", name=tree.name)
        raise LocalEdits(what, tree.shown(wrong))
    _set_refs(tree, change, change.target)
    return placed


def _write_index(tree: Tree, change: TreeChange, steps: Steps, files: TreeFiles) -> list[bytes]:
    """Make the index that of the target; returns the files that it finds to be others."""
    assert change.target is not None
    with contextlib.suppress(NotPlain):
        if (move := _index_change(tree, change, steps.sides, files)) is not None:
            return tree.work.change_index(move)
    return tree.work.write_index(change.target)


def _index_change(tree: Tree, change: TreeChange, sides: Sides, files: TreeFiles) -> IndexChange | None:
    """What changes in the index, where that is known: of a tree that moves, and of a new one, all of whose files we have written."""
    assert change.target is not None
    if change.source is None and (tree.kind != "managed" or (tree.git_dir / "index").exists()):
        return None
    with ObjectReader(tree.git_dir, tree.name) as reader:
        if change.source is None:
            found = reader.changes(None, commit_tree(reader, change.target))
            return IndexChange("", found.before, found.after, found.folders, files.entry, files.written)
        if sides.folders is None:
            return None
        source = commit_tree(reader, change.source)
        return IndexChange(source, sides.before, sides.after, sides.folders, files.entry, files.written)


def _put_away(workspace: Path, tree: Tree) -> None:
    """Take the repository out of a tree that was not there before; it goes when the journal does."""
    prepared = new_git_dir(workspace, tree.name)
    prepared.parent.mkdir(exist_ok=True)
    os.replace(tree.git_dir, prepared)
    with contextlib.suppress(OSError):  # a person's files stay
        tree.folder.rmdir()


def _set_refs(tree: Tree, change: TreeChange, target: str) -> None:
    if tree.kind == "managed":
        tree.work.set_refs(change.base, target, head=True)
        return
    owner = find_git_dir(tree.folder)
    theirs = WorkTree(owner, tree.folder) if owner else None
    if change.forget:  # our own repository of it goes when the state no longer speaks of it
        if theirs:
            theirs.drop_refs()
        return
    tree.work.set_refs(change.base, target)
    if theirs and owner and theirs.has(change.base):
        for pack in (tree.git_dir / "objects" / "pack").glob("*.pack"):
            bring_pack(pack, object_store(owner) / "pack")
        theirs.set_refs(change.base, target)


@dataclass(frozen=True)
class Recovery:
    """The run that ends an interrupted one: the same or, with `back`, its opposite; `verified` has each tree's move."""

    journal: Journal
    verified: Mapping[str, VerifiedMove]
    back: bool


def recovery(workspace: Path, journal: Journal, before: WorkspaceState | None) -> Recovery:
    """Choose how to end an interrupted run: forward where all its objects are whole, else back to the state before it.

    Changes no file of a tree. Raises BrokenRepository when objects of both ways are damaged, WrongUse or LocalEdits where
    something cannot be written now.
    """
    place_repositories(workspace, journal)
    drop_own_locks([change.tree(workspace) for change in journal.changes])
    try:
        found = Recovery(journal, _verified_moves(workspace, journal), back=False)
    except BrokenRepository as damage:
        other = taken_back(journal, before)
        try:
            found = Recovery(other, _verified_moves(workspace, other), back=True)
        except BrokenRepository:
            raise damage from None
    for change in found.journal.changes:
        tree = change.tree(workspace)
        todo = tree.todo(found.verified[change.name].sides)
        check_places(tree, change.base, [*todo, *map(os.fsencode, change.generated)])
    return found


def _verified_moves(workspace: Path, journal: Journal) -> dict[str, VerifiedMove]:
    return {change.name: verify_objects(change.tree(workspace), change.move) for change in journal.changes}
