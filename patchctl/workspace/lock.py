"""One writer a workspace. The lock is the kernel's (flock): it goes with the process that held it, however that ended."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from patchctl.errors import WorkspaceBusy, WrongUse
from patchctl.workspace.state import FOLDER


@contextmanager
def workspace_lock(workspace: Path) -> Iterator[None]:
    """Hold the workspace for the block. Raises WorkspaceBusy when another run holds it, or the lock is a symbolic link;
    WrongUse when our own folder is one."""
    folder = workspace / FOLDER
    if folder.is_symlink():
        raise WrongUse("this has to be a folder and is a symbolic link", where=str(folder))
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "lock"
    try:
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise WorkspaceBusy(f"the lock cannot be opened: {error.strerror}", where=str(file)) from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(handle, 64).decode("ascii", "replace").strip()
            raise WorkspaceBusy(
                f"another run holds the workspace (process {holder or 'unknown'})",
                where=str(workspace),
                hint="wait for it to end; a lock of a dead process frees itself",
            ) from error
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)
