"""The trees of a workspace as far as anything still tells of them: the state, the journal, the trees' own repositories."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from patchctl.errors import BadManifest
from patchctl.git.worktree import base_ref
from patchctl.workspace.journal import Journal, read_journal
from patchctl.workspace.state import FOLDER, State, TreeState, check_ids, check_place, load_state, save_json
from patchctl.workspace.trees import Tree

NOTE = "patchctl-tree.json"


@dataclass(frozen=True)
class Subject:
    """A tree, its base, the other commits whose files may be in it, the generated files that we wrote (path to digest)."""

    name: str
    kind: str
    folder: str
    base: str
    record: str = ""
    others: tuple[str, ...] = ()
    generated: dict[str, str] = field(default_factory=dict)
    state: TreeState | None = None

    def tree(self, workspace: Path) -> Tree:
        return Tree(workspace, self.name, self.kind, self.folder, self.record)


def begun(workspace: Path) -> Path:
    """The file that says that a repair has begun, and not ended."""
    return workspace / FOLDER / "repair-begun"


@dataclass(frozen=True)
class Memory:
    """What the workspace remembers of itself; errors of a state or journal that cannot be read."""

    state: State | None
    journal: Journal | None
    errors: tuple[BadManifest, ...]


def remembered(workspace: Path) -> Memory:
    """Read state and journal; never raises for what is in them."""
    errors = []
    state = journal = None
    try:
        state = load_state(workspace)
    except BadManifest as error:
        errors.append(error)
    try:
        journal = read_journal(workspace)
    except BadManifest as error:
        errors.append(error)
    return Memory(state, journal, tuple(errors))


def note_tree(git_dir: Path, tree: Tree, folder: str, base: str, tip: str | None) -> None:
    """Write beside the objects which tree they are of, and its first last commit, for when the state is lost."""
    note = {"kind": tree.kind, "folder": folder, "record": tree.record, "base": base, "tip": tip or base}
    save_json(git_dir / NOTE, note)


def subjects(workspace: Path, memory: Memory) -> list[Subject]:
    """Every tree that is ours, by name."""
    found: dict[str, Subject] = {}
    for name, tree in (memory.state.trees if memory.state else {}).items():
        found[name] = Subject(
            name, tree.kind, tree.folder, tree.base_commit, tree.record, (tree.tip_commit,), tree.generated, tree
        )
    for change in memory.journal.changes if memory.journal else ():
        others = tuple(i for i in (change.source, change.target) if i)
        known = found.get(change.name) or Subject(change.name, change.kind, change.folder, change.base, change.record)
        placed = change.taken_back(known=True).known
        found[change.name] = replace(known, others=known.others + others, generated={**known.generated, **placed})
    if memory.errors:
        for subject in _discovered(workspace):
            found.setdefault(subject.name, subject)
    return [found[name] for name in sorted(found)]


def _discovered(workspace: Path) -> Iterator[Subject]:
    for git_dir in [*workspace.glob("*/.git"), *(workspace / FOLDER).glob("into/*.git")]:
        managed = git_dir.name == ".git"
        tips = [tip] if (tip := base_ref(git_dir, "tip")) else []
        name = git_dir.parent.name if managed else git_dir.name.removesuffix(".git")
        try:
            note = json.loads((git_dir / NOTE).read_text(encoding="utf-8"))
            kind, folder, record, base = note["kind"], note["folder"], note["record"], note["base"]
            check_place(name, kind, folder, record)
            check_ids(base, note["tip"])
            tips.append(note["tip"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            found = base_ref(git_dir) if managed else None
            if found is None:
                continue
            kind, folder, record, base = "managed", name, "", found
        if (kind == "managed") == managed:
            yield Subject(name, kind, folder, base, record, tuple(tips))
