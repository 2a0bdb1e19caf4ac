"""One writer a workspace. The lock is the kernel's (flock): it goes with the process that held it, however that ended."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from patchctl.errors import WorkspaceBusy, WrongUse
from patchctl.workspace.state import FOLDER, UNFINISHED

_LOCK = "lock"
# What a run has in our folder before its journal: nothing that anyone could miss.
_NOTHING_YET = frozenset({_LOCK, "new", *UNFINISHED})
_TRIES = 20


@contextmanager
def workspace_lock(workspace: Path) -> Iterator[None]:
    """Hold the workspace for the block. Raises WorkspaceBusy when another run holds it, or the lock is a symbolic link;
    WrongUse when our own folder is one.

    A block that ends before anything was applied, well or not, leaves nothing: neither the lock nor our folder, nor
    those above it that were made for it.
    """
    folder = workspace / FOLDER
    made = [p for p in (workspace, *workspace.parents) if not p.exists()]
    handle = _take(folder)
    try:
        yield
    finally:
        _leave_nothing(folder, made)
        os.close(handle)


def _take(folder: Path) -> int:
    """The lock, held. Another run may take its file away as it ends: ours has to be the one that is in its place."""
    for _ in range(_TRIES):
        if folder.is_symlink():
            raise WrongUse("this has to be a folder and is a symbolic link", where=str(folder))
        with contextlib.suppress(FileNotFoundError):
            _make(folder)
            handle = _open(folder / _LOCK)
            if _is_in_place(handle, folder / _LOCK):
                os.ftruncate(handle, 0)
                os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
                return handle
            os.close(handle)
    raise WorkspaceBusy("other runs begin and end in the workspace all the time", where=str(folder.parent))


def _make(folder: Path) -> None:
    """The folder, made unless it is there. Raises FileNotFoundError when another run takes it away meanwhile.

    mkdir(exist_ok=True) looks a second time at what was in its place, and what another run has removed by then is to it a
    file in the way.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        for place in (folder, *folder.parents):
            if place.exists() and not place.is_dir():
                raise WrongUse("this has to be a folder and is a file", where=str(place)) from error
        raise FileNotFoundError(str(folder)) from error


def _open(file: Path) -> int:
    """The file, opened and locked. Raises FileNotFoundError when its folder is gone."""
    try:
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise WorkspaceBusy(f"the lock cannot be opened: {error.strerror}", where=str(file)) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.read(handle, 64).decode("ascii", "replace").strip()
        os.close(handle)
        raise WorkspaceBusy(
            f"another run holds the workspace (process {holder or 'unknown'})",
            where=str(file.parent.parent),
            hint="wait for it to end; a lock of a dead process frees itself",
        ) from error
    return handle


def _is_in_place(handle: int, file: Path) -> bool:
    try:
        there = os.stat(file, follow_symlinks=False)
    except FileNotFoundError:
        return False
    own = os.fstat(handle)
    return (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino)


def _leave_nothing(folder: Path, made: Sequence[Path]) -> None:
    """Take the lock away where there is nothing beside it. Under the lock: nobody else is writing here."""
    with contextlib.suppress(OSError):  # what cannot be removed stays, and does no harm
        if not {p.name for p in folder.iterdir()} <= _NOTHING_YET:
            return
        shutil.rmtree(folder / "new", ignore_errors=True)
        for name in sorted(_NOTHING_YET - {"new", _LOCK}):
            (folder / name).unlink(missing_ok=True)
        (folder / _LOCK).unlink(missing_ok=True)  # the last: from here on another run may hold the workspace
        for place in (folder, *made):
            place.rmdir()
