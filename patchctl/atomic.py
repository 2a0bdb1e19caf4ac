"""Writes files and folders completely or not at all. Every file that patchctl replaces in place goes through here."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from patchctl.errors import WorkspaceBusy, WrongUse
from patchctl.language import message

# Longer than writing one file takes; a stopped run (SIGSTOP) must not block all others forever.
_PATIENCE_SECONDS = 30.0
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def replace_file(file: Path, data: bytes, mode: int | None = None) -> None:
    """Replace `file` with `data`, fsynced before returning; creates its folder. Raises like `replacing`."""
    make_folder(file.parent)
    with replacing(file, mode) as out:
        out.write(data)


@contextmanager
def replacing(file: Path, mode: int | None = None) -> Iterator[IO[bytes]]:
    """Write a temporary file in the block, then fsync it and rename it to `file`; on an error nothing changes.

    A reader, or a run after a kill or power failure, finds the old bytes or the new ones. The temporary file has a
    fixed name, on which its writer holds a lock: of two runs one waits, and a leftover of a killed run is removed.
    The mode is `mode`, else that of the old file, else by umask; root gives the file to the old file's owner, or the
    folder's. Raises OSError, WorkspaceBusy if another run keeps the lock, or WrongUse for a device or a pipe, which a
    rename would replace.
    """
    if _is_no_place(file):
        raise WrongUse("this is a device, a pipe or a link to one, and not a file to replace", where=str(file))
    temporary = file.with_name(f".{file.name}.new")
    handle = _open_alone(temporary)
    try:
        with os.fdopen(handle, "wb") as out:
            _dress(handle, file, mode)
            yield out
            out.flush()
            os.fsync(handle)
            temporary.replace(file)  # under the lock: the name is still ours
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(file)  # ENOSPC comes from a write, which knows no name
        raise
    sync_folder(file.parent)


def _is_no_place(file: Path) -> bool:
    """Whether a name is that of a device, or leads to one or to an open file, as /dev/null and /dev/stdout do."""
    try:
        kind = stat.S_IFMT(os.stat(file).st_mode)
    except OSError:
        return False
    opened = os.path.islink(file) and os.readlink(file).startswith("/proc/")
    return opened or kind in (stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK)


def sync_folder(folder: Path) -> None:
    """Fsync a folder after a rename. Raises OSError.

    A file system that cannot do it, or a folder that we may not read, is no error: the rename just reaches the disk
    later.
    """
    handle = None
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EINVAL, errno.EOPNOTSUPP):
            raise
    finally:
        if handle is not None:
            os.close(handle)


def own_like(file: int | bytes | Path, other: os.stat_result) -> None:
    """Give what root created the owner of `other`, since the folder may belong to another user than root."""
    if os.geteuid() == 0 and (other.st_uid, other.st_gid) != (0, os.getegid()):
        # never through a link: the folder's owner may have replaced what root just created
        os.chown(file, other.st_uid, other.st_gid, follow_symlinks=isinstance(file, int))


def make_folder(folder: Path) -> None:
    """Create a folder and its parents if missing. What root creates gets its parent's owner."""
    if not folder.is_dir():
        make_folder(folder.parent)
        try:
            folder.mkdir()
        except FileExistsError as error:
            if not folder.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from error
        else:
            own_like(folder, os.stat(folder.parent))


def drop_empty(folder: Path, top: Path) -> None:
    """Remove folders that hold nothing any more, up to `top`."""
    while folder != top and not (folder.is_dir() and any(folder.iterdir())):
        if folder.is_dir():  # one that a killed run had not made yet says nothing of those above it
            folder.rmdir()
        folder = folder.parent


def is_in_place(handle: int, file: Path) -> bool:
    """Whether an open file still is the one of this name."""
    try:
        there = os.stat(file, follow_symlinks=False)
    except FileNotFoundError:
        return False
    own = os.fstat(handle)
    return (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino)


def _open_alone(temporary: Path) -> int:
    """Create and lock the temporary file. It is a new file, so no one else can have it open."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < end:
        try:
            handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            if not _take_away(temporary):
                time.sleep(0.02)
            continue
        if _hold(handle, wait=True) and is_in_place(handle, temporary):
            return handle
        os.close(handle)  # another run mistook it for a leftover
    raise WorkspaceBusy("another run is writing this file", where=str(temporary))


def _take_away(temporary: Path) -> bool:
    """Remove a leftover of a dead run. Returns False if a live run is writing it."""
    try:
        if not stat.S_ISREG(os.lstat(temporary).st_mode):
            os.unlink(temporary)  # a link or FIFO: never written through, never waited for
            return True
        handle = os.open(temporary, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        if not _hold(handle, wait=False):
            return False
        if is_in_place(handle, temporary):
            os.unlink(temporary)
        return True
    finally:
        os.close(handle)


def _hold(handle: int, *, wait: bool) -> bool:
    """Lock a file. On file systems without locks, assume that no one else holds it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


@contextmanager
def folder_lock(folder: Path, what: str) -> Iterator[None]:
    """Hold a folder for the block. Raises WorkspaceBusy, which says `what`, if another run holds it.

    The lock is flock on the folder itself: it ends with the process and leaves no file. File systems that cannot lock
    folders have no lock.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            hint = message("wait for it to end; a lock of a dead process frees itself")
            raise WorkspaceBusy(what, where=str(folder), hint=hint) from error
        except OSError:
            pass
        yield
    finally:
        os.close(handle)


def _dress(handle: int, file: Path, mode: int | None) -> None:
    """Set mode and owner before anything is written."""
    try:
        before: os.stat_result | None = os.lstat(file)
    except FileNotFoundError:
        before = None
    if before is None or not stat.S_ISREG(before.st_mode):
        before, kept = os.stat(file.parent), mode
    else:
        kept = stat.S_IMODE(before.st_mode) & 0o777 if mode is None else mode
    own_like(handle, before)
    if kept is not None and kept != stat.S_IMODE(os.fstat(handle).st_mode):
        os.fchmod(handle, kept)


@contextmanager
def filling(folder: Path, last: str = "") -> Iterator[Path]:
    """Fill a new folder in the block, then rename it to `folder`; on an error nothing is left of it.

    `folder` may be missing, empty, or have what a killed run moved there. An existing folder is filled by moving
    entries, `last` at the end, since it may be a process's current directory or a mount point, or its parent be
    read-only. The staging folder has a fixed name and is locked, as in `replacing`. Raises OSError, or WorkspaceBusy
    if another run keeps the lock.
    """
    inside = folder.exists()
    staged = staging_of(folder)
    handle = _folder_alone(staged)
    try:
        yield staged
        if not inside:
            staged.rename(folder)
            sync_folder(folder.parent)
            return
        for entry in sorted(staged.iterdir(), key=lambda e: (e.name == last, e.name)):
            target = folder / entry.name
            if entry.is_dir():
                shutil.rmtree(target, ignore_errors=True)
            entry.replace(target)
        sync_folder(folder)
    finally:
        if is_in_place(handle, staged):
            shutil.rmtree(staged, ignore_errors=True)
        os.close(handle)


def staging_of(folder: Path) -> Path:
    """Return the staging folder of `filling`."""
    return (folder if folder.exists() else folder.parent) / f".{folder.name}.new"


def _folder_alone(staged: Path) -> int:
    """Create and lock the staging folder, and empty it of a killed run's leftovers."""
    make_folder(staged.parent)
    end = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(FileExistsError):
            staged.mkdir()
        try:
            handle = os.open(staged, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # another run has just finished
        if _hold(handle, wait=False) and is_in_place(handle, staged):
            for left in staged.iterdir():
                shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
            return handle
        os.close(handle)
        time.sleep(0.02)
    raise WorkspaceBusy("another run is filling this folder", where=str(staged))


def make_like(made: Path, place: Path) -> None:
    """Give a finished file the mode and owner of the one it will replace, and fsync it."""
    handle = os.open(made, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _dress(handle, place, None)
        os.fsync(handle)
    finally:
        os.close(handle)


def new_folder(parent: Path, prefix: str) -> Path:
    """Create a new folder in `parent`, to be filled and renamed. Raises OSError.

    Unlike with tempfile its mode follows the umask, since it becomes a place that users may share.
    """
    make_folder(parent)
    folder = parent / f"{prefix}{os.urandom(8).hex()}"
    folder.mkdir()
    return folder


def sweep(parent: Path, prefix: str, older_than: float) -> None:
    """Remove leftovers of killed runs in `parent`: entries with this prefix not modified for that many seconds."""
    for left in parent.glob(f"{prefix}*"):
        try:
            if time.time() - left.stat().st_mtime > older_than:
                shutil.rmtree(left, ignore_errors=True)
        except FileNotFoundError:
            continue
