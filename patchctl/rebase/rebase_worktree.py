"""The work tree of a rebase, which has two names.

Under the hidden name it is ours, and whatever a killed run left in it may be reset. Under its own name it is the user's. A rename
releases it when a patch stops, and claims it back.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from patchctl.errors import WorkspaceBusy, WrongUse

# In the tree's git directory; its presence marks a rebase.
STATE_FILE = "patchctl-rebase.json"
_NAME = re.compile(r"(?P<shown>[^.].*)|\.(?P<hidden>.+)\.rebase(?P<gone>-gone)?")


@dataclass(frozen=True)
class RebaseWorktree:
    """The two names of a rebase's work tree."""

    folder: Path

    @property
    def hidden(self) -> Path:
        return self.folder.with_name(f".{self.folder.name}.rebase")

    @property
    def gone(self) -> Path:
        """Where it goes to be deleted."""
        return self.folder.with_name(f".{self.folder.name}.rebase-gone")

    @property
    def range_diff(self) -> Path:
        """git's range-diff of both series, which `finish` writes beside the tree."""
        return self.folder.with_name(f"{self.folder.name}.range-diff")

    @property
    def given_up(self) -> Path | None:
        """What a killed abort left of the tree."""
        return self.gone if self.held is None and (self.gone / ".git" / STATE_FILE).is_file() else None

    @property
    def held(self) -> Path | None:
        """The folder, of the two, that holds a rebase."""
        return next((f for f in (self.hidden, self.folder) if (f / ".git" / STATE_FILE).is_file()), None)

    @property
    def is_ours(self) -> bool:
        return self.held == self.hidden

    def claim(self) -> Path:
        """Make the tree ours. A hidden tree beside a visible rebase is left over from a killed start."""
        if not self.is_ours:
            shutil.rmtree(self.hidden, ignore_errors=True)
            self.folder.rename(self.hidden)
        return self.hidden

    def release(self) -> Path:
        """Give the tree to the user."""
        self.hidden.rename(self.folder)
        return self.folder

    def remove(self) -> None:
        """Delete the tree under a third name, so that a kill leaves no half of it. The state goes last: another abort finds the
        rest by it."""
        if self.held is not None:
            shutil.rmtree(self.gone, ignore_errors=True)
            self.held.rename(self.gone)
        git_dir = self.gone / ".git"
        for one in (*self.gone.iterdir(), *git_dir.iterdir()):
            if one.is_symlink() or not one.is_dir():
                one.unlink() if one.name != STATE_FILE else None
            elif one != git_dir:
                shutil.rmtree(one)
        if self.gone.is_symlink():  # somebody moved the tree to another disk, and left a link
            shutil.rmtree(self.gone.resolve())
            self.gone.unlink()
        else:
            shutil.rmtree(self.gone)


def find_worktree(folder: Path | None, start: Path, *, given_up: bool = False) -> RebaseWorktree:
    """The rebase in the named folder, in the current one, or the only one in edit/; with `given_up` also one that a killed abort left.

    Raises WrongUse when there is none, or more than one.
    """
    if folder is not None:
        place = RebaseWorktree(folder.absolute())
        if place.held is None and not (given_up and place.given_up):
            raise WrongUse(f"there is no rebase in {folder}", hint="`patchctl rebase STACK --to REVISION` begins one")
        return place
    for above in (start, *start.parents):
        if (above / ".git" / STATE_FILE).is_file():
            return RebaseWorktree(above)
    found = (
        _NAME.fullmatch(file.parents[1].name) for file in start.glob(f"edit/*/.git/{STATE_FILE}")
    )  # hidden ones too
    places = {m["shown"] or m["hidden"] for m in found if m and (given_up or not m["gone"])}
    if not places:
        hint = "`patchctl rebase STACK --to REVISION` begins one; --dir DIR names a work tree that lies elsewhere"
        raise WrongUse("no rebase is under way", hint=hint)
    if len(places) > 1:
        raise WrongUse(
            f"{len(places)} rebases are under way", hint=f"--dir names one of edit/{', edit/'.join(sorted(places))}"
        )
    return RebaseWorktree(start / "edit" / places.pop())


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a rebase's work tree; the lock survives its renames. Raises WorkspaceBusy."""
    handle = os.open(folder / ".git", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise WorkspaceBusy("another run is at this rebase", where=str(folder)) from None
        yield
    finally:
        os.close(handle)
