"""Locks of git in a tree's repository: our own are told from those of others exactly, and only ours ever go.

What takes git's own locks, index and HEAD, is made whole in a file that only patchctl writes and is put in its place as git
does it: the lock, which must not be there yet, and then a rename. The lock is made as a link of the finished file, so that one
that a killed run left is known by its inode. All other locks that we take have names of ours.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from patchctl.atomic import make_folder, make_like, sync_folder
from patchctl.errors import LocalEdits

OWN = ".patchctl-new"
SNAPSHOT = "index.patchctl-snapshot"
STASH = "patchctl-stash"
# What another git may hold while we want to write: longer than any of its commands but those that wait for a person.
_SECONDS = 3.0
_ORPHAN_SECONDS = 20.0
_STEP = 0.1
_TAKEN = ("index", "HEAD", "packed-refs")


def put_in_place(made: Path, place: Path) -> None:
    """Replace `place`, a file of a git directory, by the finished file `made`. Raises LocalEdits when git keeps its lock."""
    make_like(made, place)
    lock = place.with_name(f"{place.name}.lock")
    end = time.monotonic() + _SECONDS
    while not _take(made, lock):
        if time.monotonic() > end:
            raise held([lock])
        time.sleep(_STEP)
    os.replace(lock, place)
    made.unlink(missing_ok=True)


def place_new(file: Path, data: bytes) -> None:
    """Replace a reference of ours by its lock, which only we take. Raises FileExistsError when it is there."""
    make_folder(file.parent)
    lock = file.with_name(f"{file.name}.lock")
    handle = os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())  # as git does by default (core.fsync): an empty reference is a broken repository
        make_like(lock, file)
        os.replace(lock, file)
    except BaseException:
        lock.unlink(missing_ok=True)
        raise
    sync_folder(file.parent)


def _take(made: Path, lock: Path) -> bool:
    try:
        os.link(made, lock)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            raise
        return _take_copy(made, lock)  # this file system has no links
    return True


def _take_copy(made: Path, lock: Path) -> bool:
    try:
        handle = os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        return False
    with os.fdopen(handle, "wb") as out:
        out.write(made.read_bytes())
    return True


def drop_own(git_dirs: Sequence[Path]) -> None:
    """Take away what a killed run of ours left. A git that it had started may still be at work: that one is waited for."""
    _wait_for_orphans(git_dirs)
    for git_dir in git_dirs:
        _drop(git_dir)


def _drop(git_dir: Path) -> None:
    names = [f"{name}{OWN}" for name in _TAKEN] + [SNAPSHOT]
    locks = [git_dir / f"{name}.lock" for name in names]
    locks += [*(git_dir / "refs/patchctl").glob("*.lock"), *(git_dir / "refs/heads").glob(f"{STASH}-*.lock")]
    for name in _TAKEN:
        made, lock = git_dir / f"{name}{OWN}", git_dir / f"{name}.lock"
        if _is_ours(made, lock):
            locks.append(lock)
    for file in [*locks, *(git_dir / name for name in (*names, ".shallow.new"))]:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            file.unlink()


def _wait_for_orphans(git_dirs: Iterable[Path]) -> None:
    """Wait until no git runs that was started on one of these repositories as we start one: by its command line."""
    options = frozenset(b"--git-dir=" + os.fsencode(git_dir) for git_dir in git_dirs)
    end = time.monotonic() + _ORPHAN_SECONDS
    while options and time.monotonic() < end and _is_started_on(options):
        time.sleep(_STEP)


def _is_started_on(options: frozenset[bytes]) -> bool:
    """One look at every process for all repositories: on a busy machine it is a hundred files."""
    for process in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if process.isdigit():
            with contextlib.suppress(OSError):  # it ended, or may not be seen
                with open(f"/proc/{process}/cmdline", "rb", buffering=0) as command:
                    if not options.isdisjoint(command.read().split(b"\0")):
                        return True
    return False


def _is_ours(made: Path, lock: Path) -> bool:
    try:
        one, other = made.lstat(), lock.lstat()
        if (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino):
            return True
        return one.st_size > 0 and made.read_bytes() == lock.read_bytes()
    except OSError:
        return False


def check_free(git_dir: Path, *names: str) -> None:
    """Raise LocalEdits when another git holds the lock of one of these files, and does not let it go."""
    left = wait_for(git_dir / f"{name}.lock" for name in names)
    if left:
        raise held(left)


def wait_for(locks: Iterable[Path]) -> list[Path]:
    """Wait a little for these locks; returns those that stay."""
    end = time.monotonic() + _SECONDS
    left = [lock for lock in locks if os.path.lexists(lock)]
    while left and time.monotonic() < end:
        time.sleep(_STEP)
        left = [lock for lock in left if os.path.lexists(lock)]
    return left


def held(locks: Iterable[Path]) -> LocalEdits:
    """The refusal for locks that are not ours."""
    hint = "wait until it has ended; where no git is at work any more, `patchctl repair` moves its lock aside"
    return LocalEdits(
        "git is at work in a tree, or was killed there and left its lock", [str(p) for p in locks], hint=hint
    )
