"""Finds the trees that `patchctl repair` works on, from whatever can still be read: state, journal, the trees' own repositories."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from patchctl.errors import BadManifest
from patchctl.git.worktree import base_ref
from patchctl.workspace.journal import Journal, read_journal
from patchctl.workspace.state import FOLDER, TreeState, WorkspaceState, check_ids, check_place, load_state, save_json
from patchctl.workspace.trees import Tree

NOTE = "patchctl-tree.json"


@dataclass(frozen=True)
class RepairTarget:
    """A tree with its base, the other commits whose files it may hold, and the generated files we wrote (path to digest)."""

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


def repair_marker(workspace: Path) -> Path:
    """The file that exists while a repair is unfinished."""
    return workspace / FOLDER / "repair-begun"


@dataclass(frozen=True)
class LastKnown:
    """The state and journal of a workspace, with the errors of those that cannot be read."""

    state: WorkspaceState | None
    journal: Journal | None
    errors: tuple[BadManifest, ...]


def last_known(workspace: Path) -> LastKnown:
    """Read state and journal. Never raises for their content."""
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
    return LastKnown(state, journal, tuple(errors))


def note_tree(git_dir: Path, tree: Tree, folder: str, base: str, tip: str | None) -> None:
    """Record in the repository which tree it belongs to, with its base and first tip, in case the state is lost."""
    note = {"kind": tree.kind, "folder": folder, "record": tree.record, "base": base, "tip": tip or base}
    save_json(git_dir / NOTE, note)


def repair_targets(workspace: Path, last: LastKnown) -> list[RepairTarget]:
    """Every tree of the workspace, sorted by name."""
    found: dict[str, RepairTarget] = {}
    for name, tree in (last.state.trees if last.state else {}).items():
        found[name] = RepairTarget(
            name, tree.kind, tree.folder, tree.base_commit, tree.record, (tree.tip_commit,), tree.generated, tree
        )
    for change in last.journal.changes if last.journal else ():
        others = tuple(i for i in (change.source, change.target) if i)
        known = found.get(change.name) or RepairTarget(
            change.name, change.kind, change.folder, change.base, change.record
        )
        placed = change.taken_back(known=True).known
        found[change.name] = replace(known, others=known.others + others, generated={**known.generated, **placed})
    if last.errors:
        for target in _discovered(workspace):
            found.setdefault(target.name, target)
    return [found[name] for name in sorted(found)]


def _discovered(workspace: Path) -> Iterator[RepairTarget]:
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
            yield RepairTarget(name, kind, folder, base, record, tuple(tips))
