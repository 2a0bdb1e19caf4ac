"""What another git is at in a tree's repository: its locks, and a rebase, a merge, ... that the user must finish first.

Only our own locks are ever removed, and they can be told apart exactly. A file that git locks (index, HEAD, packed-refs)
is first written in full to a file of ours. The lock is then created as a hard link to it, which must not exist yet, and
renamed into place, as git does. A lock left by a killed run is therefore known by its inode. All other locks that we
take have names of our own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from patchctl.atomic import make_folder, make_like, sync_folder
from patchctl.errors import LocalEdits
from patchctl.language import message

OWN = ".patchctl-new"
SNAPSHOT = "index.patchctl-snapshot"
STASH = "patchctl-stash"
# How long to wait for another git's lock: longer than any git command that does not wait for a person.
_SECONDS = 3.0
_ORPHAN_SECONDS = 20.0
_STEP = 0.1
_TAKEN = ("index", "HEAD", "packed-refs")


def put_in_place(made: Path, place: Path) -> None:
    """Replace `place`, a file of a git directory, with `made`. Raises LocalEdits if git keeps its lock."""
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
    """Write one of our own refs through its lock. Raises FileExistsError if the lock exists."""
    make_folder(file.parent)
    lock = file.with_name(f"{file.name}.lock")
    handle = os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())  # as git does by default (core.fsync): an empty ref breaks the repository
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
        return _take_copy(made, lock)  # no hard links on this file system
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
    """Remove what a killed run of ours left, after waiting for a git that it started."""
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
    """Wait until no git that we started runs on these repositories, judged by its command line."""
    options = frozenset(b"--git-dir=" + os.fsencode(git_dir) for git_dir in git_dirs)
    end = time.monotonic() + _ORPHAN_SECONDS
    while options and time.monotonic() < end and _is_started_on(options):
        time.sleep(_STEP)


def _is_started_on(options: frozenset[bytes]) -> bool:
    """Scan all processes once for all repositories, since a busy machine has hundreds."""
    for process in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if process.isdigit():
            with contextlib.suppress(OSError):  # it ended, or is not visible to us
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
    """Raise LocalEdits if another git holds the lock of one of these files and does not release it."""
    left = wait_for(git_dir / f"{name}.lock" for name in names)
    if left:
        raise held(left)


def wait_for(locks: Iterable[Path]) -> list[Path]:
    """Wait a few seconds for these locks; return those that remain."""
    end = time.monotonic() + _SECONDS
    left = [lock for lock in locks if os.path.lexists(lock)]
    while left and time.monotonic() < end:
        time.sleep(_STEP)
        left = [lock for lock in left if os.path.lexists(lock)]
    return left


def held(locks: Iterable[Path]) -> LocalEdits:
    """Return the error for locks that are not ours."""
    hint = message("wait until it has finished; if no git is running any more, `patchctl repair` moves the lock aside")
    return LocalEdits(
        message("git is running in a tree, or was killed and left its lock behind"), [str(p) for p in locks], hint=hint
    )


# Files in the git directory that mark an operation in progress, outermost first: a rebase stops inside its own cherry-picks.
OPERATIONS = {
    "rebase-merge": "rebase",
    "rebase-apply": "rebase",
    "MERGE_HEAD": "merge",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
    "sequencer": "cherry-pick",
    "BISECT_LOG": "bisect",
}


@dataclass(frozen=True)
class Operation:
    """An operation: its `name` for messages, the commands that end it (`way_out`) and the file that marks it."""

    name: str
    way_out: str
    mark: Path


def find_operation(git_dir: Path) -> Operation | None:
    """Return the operation in progress."""
    for mark, verb in OPERATIONS.items():
        if not (git_dir / mark).exists():
            continue
        if mark == "sequencer":
            verb = _sequence(git_dir)
        if mark == "rebase-apply" and (git_dir / mark / "applying").exists():
            verb = "am"
        name = message("an am") if verb == "am" else message("a {verb}", verb=verb)
        way_out = message("`git {verb} --continue`, or `git {verb} --abort`", verb=verb)
        return Operation(name, "`git bisect reset`" if verb == "bisect" else way_out, git_dir / mark)
    return None


def _sequence(git_dir: Path) -> str:
    """Return which verb the sequencer's todo list belongs to: between two steps there is no other mark."""
    try:
        first = (git_dir / "sequencer" / "todo").read_bytes()
    except OSError:
        return "cherry-pick"
    return "revert" if first.startswith(b"revert") else "cherry-pick"
