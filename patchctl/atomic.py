"""Files and folders that are written whole or not at all. Nothing else in patchctl writes a file in its place."""

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

from patchctl.errors import WorkspaceBusy

# Longer than anybody writes one file; a run that was stopped (SIGSTOP) must not stop all others for good.
_PATIENCE_SECONDS = 30.0
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def replace_file(file: Path, data: bytes, mode: int | None = None) -> None:
    """Put `data` in the place of `file`, on disk before this returns; its folder is made. As `replacing`."""
    make_folder(file.parent)
    with replacing(file, mode) as out:
        out.write(data)


@contextmanager
def replacing(file: Path, mode: int | None = None) -> Iterator[IO[bytes]]:
    """What the block writes takes the place of `file`, or nothing does: beside it first, synchronised, then by rename.

    A reader, or a run after a kill or a power cut, finds the old bytes or the new ones. The unfinished file has one name, on
    which its writer holds a lock: of two runs one waits, and what a killed one left is taken away by the next. The mode is
    `mode`, else that of the file before, else the umask's; root gives it to the owner of the file before or of the folder.
    Raises OSError, and WorkspaceBusy when another run is at it all the time.
    """
    temporary = file.with_name(f".{file.name}.new")
    handle = _open_alone(temporary)
    try:
        with os.fdopen(handle, "wb") as out:
            _dress(handle, file, mode)
            yield out
            out.flush()
            os.fsync(handle)
            temporary.replace(file)  # under the lock: the name is ours until then
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(file)  # a full disk is told of by a call that knows no name
        raise
    sync_folder(file.parent)


def sync_folder(folder: Path) -> None:
    """What was renamed in a folder, on disk. Raises OSError; a file system that cannot do it, or a folder that we may not
    read, is no fault: the rename holds, and is on disk a little later."""
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
    """Give a file that root made to whom `other` belongs to: a folder may be another user's than the one who runs us."""
    if os.geteuid() == 0 and (other.st_uid, other.st_gid) != (0, os.getegid()):
        # never through a link: who owns the folder may have put one in the place of what root has just made
        os.chown(file, other.st_uid, other.st_gid, follow_symlinks=isinstance(file, int))


def make_folder(folder: Path) -> None:
    """The folder and those above it, unless they are there; what root makes belongs to the owner of what it is made in."""
    if not folder.is_dir():
        make_folder(folder.parent)
        try:
            folder.mkdir()
        except FileExistsError:
            if not folder.is_dir():
                raise
        else:
            own_like(folder, os.stat(folder.parent))


def is_in_place(handle: int, file: Path) -> bool:
    """Whether an open file is the one that has this name, and not one that had it."""
    try:
        there = os.stat(file, follow_symlinks=False)
    except FileNotFoundError:
        return False
    own = os.fstat(handle)
    return (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino)


def _open_alone(temporary: Path) -> int:
    """A new file of this name, held: nobody had it open before, so that nobody else can write to what it becomes."""
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
        os.close(handle)  # another run took it for one that was left
    raise WorkspaceBusy("another run is writing this file", where=str(temporary))


def _take_away(temporary: Path) -> bool:
    """Remove what is no live run's; False when another run writes it."""
    try:
        if not stat.S_ISREG(os.lstat(temporary).st_mode):
            os.unlink(temporary)  # never written through, never waited for: a link, a FIFO
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
    """Take the lock of a file. A file system without locks counts as held by nobody else."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def _dress(handle: int, file: Path, mode: int | None) -> None:
    """Mode and owner, before there is a byte in it."""
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
    """A new folder to be filled, which becomes `folder` as the block ends; nothing is left of it when that raises.

    `folder` is not there, or empty, or holds what a killed run had moved there. One that is there is filled by moving, `last`
    as the last: somebody may stand in it, it may be a mount point, or its parent be closed to us. The unfinished folder has
    one name and is locked, as in `replacing`. Raises OSError, and WorkspaceBusy when another run is at it all the time.
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
    """Where `filling` makes what becomes `folder`."""
    return (folder if folder.exists() else folder.parent) / f".{folder.name}.new"


def _folder_alone(staged: Path) -> int:
    """An empty folder of this name, held. What a killed run left in it goes."""
    make_folder(staged.parent)
    end = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(FileExistsError):
            staged.mkdir()
        try:
            handle = os.open(staged, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # another run has just ended
        if _hold(handle, wait=False) and is_in_place(handle, staged):
            for left in staged.iterdir():
                shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
            return handle
        os.close(handle)
        time.sleep(0.02)
    raise WorkspaceBusy("another run is filling this folder", where=str(staged))


def make_like(made: Path, place: Path) -> None:
    """Give a finished file the mode and the owner of the one that it is about to replace, and wait until it is on disk."""
    handle = os.open(made, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _dress(handle, place, None)
        os.fsync(handle)
    finally:
        os.close(handle)


def new_folder(parent: Path, prefix: str) -> Path:
    """A new folder in `parent`, to be filled and renamed. Raises OSError.

    Unlike tempfile's it is for whom the umask says, since it becomes a place that several users may share.
    """
    make_folder(parent)
    folder = parent / f"{prefix}{os.urandom(8).hex()}"
    folder.mkdir()
    return folder


def sweep(parent: Path, prefix: str, older_than: float) -> None:
    """Drop what killed runs left in `parent`: entries whose name begins so and that nobody wrote to for that many seconds."""
    for left in parent.glob(f"{prefix}*"):
        try:
            if time.time() - left.stat().st_mtime > older_than:
                shutil.rmtree(left, ignore_errors=True)
        except FileNotFoundError:
            continue
