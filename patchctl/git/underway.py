"""What git has under way in a repository: a rebase, a merge, ... that its user has to end or to give up first.

Until then git has notes of where it came from, and `git rebase --abort` brings that back, whatever stands there by then.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# What shows it in the git directory.
UNDER_WAY = ("rebase-merge", "rebase-apply", "MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "sequencer", "BISECT_LOG")


@dataclass(frozen=True)
class Operation:
    """`name` as a person says it, `way_out` the commands that end it, `mark` the file of the git directory that shows it."""

    name: str
    way_out: str
    mark: Path


def find_operation(git_dir: Path) -> Operation | None:
    """What is under way, the outermost first: a rebase stops in cherry-picks of its own."""
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
    """Whose the list of steps to come is: between two of them no other mark is there."""
    try:
        first = (git_dir / "sequencer" / "todo").read_bytes()
    except OSError:
        return "cherry-pick"
    return "revert" if first.startswith(b"revert") else "cherry-pick"
