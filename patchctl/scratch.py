"""Temporary folders: removed when the run ends, or if it was killed, by the next run that makes one like it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from patchctl.atomic import is_in_place


@contextmanager
def scratch(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """Yield a new folder with this prefix in `parent`, else in the temporary directory. Raises OSError.

    First removes folders with this prefix that killed runs left: the trees of a `bisect` are gigabytes. The run holds
    a lock on its folder, so that no other run removes it.
    """
    sweep(prefix, parent)
    folder, handle = _held_folder(Path(parent or tempfile.gettempdir()), prefix)
    try:
        yield folder
    finally:
        _remove(folder)
        os.close(handle)


def _held_folder(place: Path, prefix: str) -> tuple[Path, int]:
    """Create a folder and lock it; return it and the lock's handle."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        with contextlib.suppress(FileNotFoundError):  # another run mistook it for a leftover
            handle = _open(folder)
            if _hold(handle, alone=True) and is_in_place(handle, folder):
                return folder, handle
            os.close(handle)


def sweep(prefix: str, parent: Path | None = None) -> None:
    """Remove this user's folders that no run holds. Errors are ignored."""
    with contextlib.suppress(OSError):
        place = Path(parent or tempfile.gettempdir())
        entries = list(os.scandir(place))
        for name in [e.name for e in entries if e.name.startswith(prefix) and e.is_dir(follow_symlinks=False)]:
            with contextlib.suppress(OSError, RecursionError):  # RecursionError: folders in folders, by the thousand
                _take_away(place / name)


def _take_away(folder: Path) -> None:
    handle = _open(folder)
    try:
        if os.fstat(handle).st_uid == os.geteuid() and _hold(handle, alone=False):
            _remove(folder)
    finally:
        os.close(handle)


def _remove(folder: Path) -> None:
    """Remove a folder, also with read-only folders inside, which a user's command may have made."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        for inside, folders, _ in os.walk(folder):
            for one in (os.path.join(inside, name) for name in folders):
                with contextlib.suppress(OSError):
                    if not os.path.islink(one):
                        os.chmod(one, 0o700)
        shutil.rmtree(folder, ignore_errors=True)


def _open(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _hold(handle: int, *, alone: bool) -> bool:
    """Lock a folder. Without lock support, a run continues unlocked (`alone`), and nothing is swept."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return alone and error.errno not in (errno.EAGAIN, errno.EACCES)
    return True
