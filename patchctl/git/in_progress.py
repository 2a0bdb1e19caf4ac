"""Finds an operation in progress in a repository: a rebase, a merge, ... that the user must finish or abort first.

Until then git remembers where it started, and `git rebase --abort` restores that, whatever has changed since.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# Files in the git directory that mark an operation in progress.
IN_PROGRESS = (
    "rebase-merge",
    "rebase-apply",
    "MERGE_HEAD",
    "CHERRY_PICK_HEAD",
    "REVERT_HEAD",
    "sequencer",
    "BISECT_LOG",
)


@dataclass(frozen=True)
class Operation:
    """An operation: its `name` for messages, the commands that end it (`way_out`) and the file that marks it."""

    name: str
    way_out: str
    mark: Path


def find_operation(git_dir: Path) -> Operation | None:
    """Return the operation in progress, outermost first: a rebase stops inside its own cherry-picks."""
    for mark, verb in (
        ("rebase-merge", "rebase"),
        ("rebase-apply", "am" if (git_dir / "rebase-apply" / "applying").exists() else "rebase"),
        ("MERGE_HEAD", "merge"),
        ("CHERRY_PICK_HEAD", "cherry-pick"),
        ("REVERT_HEAD", "revert"),
        ("sequencer", _sequence(git_dir)),
    ):
        if (git_dir / mark).exists():
            return Operation(f"a {verb}" if verb != "am" else "an am", _commands(verb), git_dir / mark)
    if (git_dir / "BISECT_LOG").exists():
        return Operation("a bisect", "`git bisect reset`", git_dir / "BISECT_LOG")
    return None


def _commands(verb: str) -> str:
    return f"`git {verb} --continue`, or `git {verb} --abort`"


def _sequence(git_dir: Path) -> str:
    """Return which verb the sequencer's todo list belongs to: between two steps there is no other mark."""
    try:
        first = (git_dir / "sequencer" / "todo").read_bytes()
    except OSError:
        return "cherry-pick"
    return "revert" if first.startswith(b"revert") else "cherry-pick"
