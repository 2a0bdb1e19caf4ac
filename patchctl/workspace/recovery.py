"""The way that an interrupted run takes: on, where all its objects are whole, else back to what was there before it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from patchctl.errors import BrokenRepository
from patchctl.workspace.journal import Journal, TreeChange, place_repositories, taken_back
from patchctl.workspace.leftovers import drop_own_locks
from patchctl.workspace.proof import Proof, check_places, prove
from patchctl.workspace.state import State


@dataclass(frozen=True)
class Recovery:
    """The run that ends an interrupted one: the same, or with `back` its opposite; and the proof of each tree's move."""

    journal: Journal
    proofs: Mapping[str, Proof]
    back: bool


def recovery(workspace: Path, journal: Journal, before: State | None) -> Recovery:
    """Settle the way. Changes no file of a tree. Raises BrokenRepository when objects of both ways are damaged, WrongUse or
    LocalEdits where something cannot be written now."""
    place_repositories(workspace, journal)
    drop_own_locks([change.tree(workspace) for change in journal.changes])
    try:
        found = Recovery(journal, _proofs(workspace, journal), back=False)
    except BrokenRepository as damage:
        other = taken_back(journal, before)
        try:
            found = Recovery(other, _proofs(workspace, other), back=True)
        except BrokenRepository:
            raise damage from None
    for change in found.journal.changes:
        tree = change.tree(workspace)
        todo = tree.todo(found.proofs[change.name].sides)
        check_places(tree, change.base, [*todo, *map(os.fsencode, change.generated)])
    return found


def _proofs(workspace: Path, journal: Journal) -> dict[str, Proof]:
    return {change.name: _proof(workspace, change) for change in journal.changes}


def _proof(workspace: Path, change: TreeChange) -> Proof:
    return prove(change.tree(workspace), change.move)
