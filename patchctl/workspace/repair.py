"""`patchctl repair`: the way out of a workspace that no other verb can use. Every tree ends at its base, every file of a person
is where it was or aside, and nothing is overwritten."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from patchctl.doc import Doc
from patchctl.errors import LocalEdits, WrongUse
from patchctl.git.catfile import ObjectReader
from patchctl.workspace.aside import Aside
from patchctl.workspace.leftovers import drop_own_locks, sweep
from patchctl.workspace.lock import workspace_lock
from patchctl.workspace.mending import Mending, Seen, locks, look
from patchctl.workspace.state import FOLDER, State, TreeState, save_json
from patchctl.workspace.subjects import Memory, Subject, begun, remembered, subjects
from patchctl.workspace.trees import commit_tree


@dataclass(frozen=True)
class RepairedTree:
    """One tree."""

    name: Annotated[str, Doc("the upstream")]
    folder: Annotated[str, Doc("its folder")]
    outcome: Annotated[
        str,
        Doc("base; aside: moved away whole; left: an `--into` checkout as it was; gone: its owner had taken it away"),
    ]
    commit: Annotated[str, Doc("the commit of its base")]


@dataclass(frozen=True)
class Repair:
    """What was seen and done; of a healthy workspace nothing."""

    workspace: Annotated[str, Doc("its folder")]
    found: Annotated[tuple[Seen, ...], Doc("what is not as it should be")]
    aside: Annotated[str | None, Doc("the folder to which things were moved; null when there was none")]
    kept: Annotated[tuple[str, ...], Doc("each thing that was moved or kept there, by its place now")]
    trees: Annotated[
        tuple[RepairedTree, ...], Doc("what became of each tree; empty for a dry run, and where only locks were moved")
    ]

    @property
    def healthy(self) -> Annotated[bool, Doc("nothing was found, and nothing changed")]:
        return not self.found


def look_at(workspace: Path) -> Repair:
    """What `repair` would have to do. Takes no lock, writes nothing."""
    _check_is_one(workspace)
    memory = remembered(workspace)
    return Repair(str(workspace), tuple(_look(workspace, memory, subjects(workspace, memory))), None, (), ())


def repair(workspace: Path, cache: Path) -> Repair:
    """Make a clean base of every tree that can be made from what the workspace or the cache holds; the others go aside whole.

    Raises WrongUse for no workspace, WorkspaceBusy, and LocalEdits while a git is at work in a tree. Killed at any time, it
    can be run again.
    """
    _check_is_one(workspace)
    with workspace_lock(workspace):
        memory = remembered(workspace)
        trees = subjects(workspace, memory)
        drop_own_locks([subject.tree(workspace) for subject in trees])
        found = tuple(_look(workspace, memory, trees))
        if not found:
            return Repair(str(workspace), (), None, (), ())
        for subject in trees:
            _check_no_git(subject, workspace)
        begun(workspace).touch()
        aside = Aside(workspace)
        if {seen.kind for seen in found} == {"lock"}:
            done = _move_locks(workspace, trees, aside)
        else:
            done = _to_base(workspace, memory, trees, aside, cache)
        begun(workspace).unlink()
        kept = tuple(str(path) for path in aside.kept)
        return Repair(str(workspace), found, str(aside.folder) if kept else None, kept, done)


def _check_is_one(workspace: Path) -> None:
    if not (workspace / FOLDER).is_dir():
        raise WrongUse(f"{workspace} is no workspace", hint="name it with --workspace DIR")


def _look(workspace: Path, memory: Memory, trees: Sequence[Subject]) -> Iterator[Seen]:
    for error in memory.errors:
        file = error.where.file if error.where else str(workspace)
        yield Seen("journal" if file.endswith("journal.json") else "state", file, error.what)
    if begun(workspace).exists():
        yield Seen("repair", str(begun(workspace)), "a repair was interrupted")
    if memory.journal is not None:
        place = str(workspace / FOLDER / "journal.json")
        yield Seen("interrupted", place, f"{memory.journal.verb} was interrupted; the next one would finish it")
    for subject in trees:
        yield from look(workspace, subject)


def _check_no_git(subject: Subject, workspace: Path) -> None:
    """Raise LocalEdits while a git of somebody's works in the tree: its lock is not stale, whatever its age."""
    tree = subject.tree(workspace)
    inside = os.path.realpath(tree.folder)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "comm").read_text().strip() != "git":
                continue
            command = (process / "cmdline").read_bytes().split(b"\0")
            place = os.path.realpath(os.readlink(process / "cwd"))
        except OSError:  # it ended, or may not be seen
            continue
        if place == inside or place.startswith(f"{inside}/") or f"--git-dir={tree.git_dir}".encode() in command:
            what = f"a git is at work in {tree.name} (process {process.name})"
            raise LocalEdits(what, [str(tree.folder)], hint="wait for it to end, or end it, then repair")


def _move_locks(workspace: Path, trees: Sequence[Subject], aside: Aside) -> tuple[RepairedTree, ...]:
    """Stale locks alone: the trees stay as they are applied."""
    for subject in trees:
        for lock in locks(subject.tree(workspace)):
            aside.take(lock, f"{subject.name}.git", lock.name)
    return ()


def _to_base(
    workspace: Path, memory: Memory, trees: Sequence[Subject], aside: Aside, cache: Path
) -> tuple[RepairedTree, ...]:
    own = workspace / FOLDER
    states: dict[str, TreeState] = {}
    done = []
    for subject in trees:
        mending = Mending(workspace, subject, aside, cache)
        outcome = mending.run()
        done.append(RepairedTree(subject.name, str(mending.tree.folder), outcome, subject.base))
        if outcome == "base" and subject.kind == "managed":
            states[subject.name] = _at_base(mending)
    for error in memory.errors:
        if error.where is not None and os.path.lexists(error.where.file):
            aside.copy(Path(error.where.file), FOLDER, Path(error.where.file).name)
    roots = [s.root for s in (memory.state, memory.journal.after if memory.journal else None) if s is not None]
    state = State(None, (roots or [""])[0], (), states, ())
    save_json(own / "state.json", state.as_json())
    (own / "journal.json").unlink(missing_ok=True)  # the last: until here it can be done again
    for place in sweep(workspace, state).values():
        aside.kept.append(place)
    return tuple(done)


def _at_base(mending: Mending) -> TreeState:
    subject = mending.subject
    with ObjectReader(mending.tree.git_dir, subject.name) as reader:
        tree = commit_tree(reader, subject.base)
    old = subject.state
    return TreeState(
        kind=subject.kind,
        folder=subject.folder,
        stack=old.stack if old else "unknown",
        form=old.form if old else "git",
        origin=old.origin if old else "",
        base_commit=subject.base,
        base_tree=tree,
        tip_commit=subject.base,
        tip_tree=tree,
        locked=False,
        generated=mending.generated,
    )
