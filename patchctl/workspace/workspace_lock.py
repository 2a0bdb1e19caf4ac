"""One writer per workspace, and the cleanup of what killed runs left in it.

The lock is the kernel's (flock): it goes with the process that held it, however that ended.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from patchctl.atomic import folder_lock, is_in_place, make_folder, own_like
from patchctl.errors import PatchctlError, WorkspaceBusy, WrongUse
from patchctl.git.locks import drop_own
from patchctl.git.worktree import UNFINISHED_PACKS, find_git_dir, object_store
from patchctl.language import message
from patchctl.os_errors import as_user_error
from patchctl.workspace.state import FOLDER, UNFINISHED, WorkspaceState, load_state
from patchctl.workspace.trees import Tree

_LOCK = "lock"
# What a run has in our folder before its journal: nothing that anyone could miss.
_NOTHING_YET = frozenset({_LOCK, "new", *UNFINISHED})
_TRIES = 20


@contextmanager
def workspace_lock(workspace: Path) -> Iterator[None]:
    """Hold the workspace for the block. Raises WorkspaceBusy when another run holds it; WrongUse when the lock or our own
    folder is a link or no such thing, when we may not write there, and where the file system has no locks.

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


@contextmanager
def tree_locks(workspace: Path, into: Iterable[Path] = ()) -> Iterator[None]:
    """Hold the trees that lie outside the workspace, where runs of other workspaces write as well. Raises WorkspaceBusy."""
    state = load_state(workspace)
    trees = (
        [Tree.of(workspace, *one).folder for one in state.trees.items() if one[1].kind != "managed"] if state else []
    )
    with contextlib.ExitStack() as held:
        for folder in sorted({folder.resolve() for folder in (*into, *trees) if folder.is_dir()}):
            held.enter_context(folder_lock(folder, message("a run of another workspace holds this tree")))
        yield


def _take(folder: Path) -> int:
    """The lock, held. Another run may take its file away as it ends: ours has to be the one that is in its place."""
    for _ in range(_TRIES):
        if folder.is_symlink():
            raise WrongUse(message("this has to be a folder and is a symbolic link"), where=str(folder))
        with contextlib.suppress(FileNotFoundError):
            _make(folder)
            handle = _open(folder / _LOCK)
            if is_in_place(handle, folder / _LOCK):
                os.ftruncate(handle, 0)
                os.pwrite(handle, f"{os.getpid()} {os.uname().nodename}\n".encode(), 0)
                return handle
            os.close(handle)
    raise WorkspaceBusy(message("other runs begin and end in the workspace all the time"), where=str(folder.parent))


def _make(folder: Path) -> None:
    """The folder, made unless it is there. Raises FileNotFoundError when another run takes it away meanwhile.

    mkdir(exist_ok=True) looks a second time at what was in its place, and what another run has removed by then is to it a
    file in the way.
    """
    try:
        make_folder(folder)
    except (FileExistsError, NotADirectoryError) as error:
        for place in (folder, *folder.parents):
            if place.exists() and not place.is_dir():
                raise WrongUse(message("this has to be a folder and is a file"), where=str(place)) from error
            if place.is_symlink() and not place.exists():
                raise WrongUse(message("this has to be a folder and is a link to nothing"), where=str(place)) from error
        raise FileNotFoundError(str(folder)) from error


def _open(file: Path) -> int:
    """The file, opened and locked. Raises FileNotFoundError when its folder, or a dead run's file of another user, is gone."""
    handle, ours = _opened(file)
    try:
        if not stat.S_ISREG((own := os.fstat(handle)).st_mode):
            raise _no_lock(file)
        _hold(handle, file)
        if (not ours or own.st_nlink > 1) and is_in_place(handle, file):
            os.unlink(
                file
            )  # nobody holds it, and we may not write who does, here or elsewhere: the next try makes a new one
            raise FileNotFoundError(str(file))
    except BaseException as error:
        os.close(handle)
        if isinstance(error, PermissionError):
            raise _denied(error, file) from error
        raise
    return handle


def _opened(file: Path) -> tuple[int, bool]:
    """An open file, and whether it can be written. Another user's may be for reading only, which is enough to ask."""
    flags = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(os.lstat(file).st_mode):  # before it is opened: a device may do something then
                raise _no_lock(file)
        try:
            return _made(file, flags), True
        except PermissionError:
            return os.open(file, os.O_RDONLY | flags), False
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise _no_lock(file) from error
        raise _denied(error, file) from error


def _made(file: Path, flags: int) -> int:
    """The umask says for whom: who shares a workspace takes turns."""
    try:
        return os.open(file, os.O_RDWR | flags)
    except FileNotFoundError:
        handle = os.open(file, os.O_RDWR | os.O_CREAT | flags, 0o666)
        own_like(handle, os.stat(file.parent))
        return handle


def _hold(handle: int, file: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise WorkspaceBusy(
            message("another run holds the workspace ({holder})", holder=_holder(handle)),
            where=str(file.parent.parent),
            hint=message("wait for it to end; a lock of a dead process frees itself"),
        ) from error
    except OSError as error:
        hint = message("name a workspace on another file system; Lustre has them when it is mounted with `-o flock`")
        what = message(
            "the file system has no locks, and two runs at once would destroy the workspace: {error}",
            error=error.strerror,
        )
        raise WrongUse(what, where=str(file), hint=hint) from error


def _holder(handle: int) -> str:
    """Who wrote itself in: for people only. A process of another container or machine has a number that is none here."""
    found = re.fullmatch(rb"(\d{1,10})(?: ([\w.-]{1,64}))?\n", os.pread(handle, 128, 0))
    if found is None:
        return message("process unknown")
    process = message("process {number}", number=found[1].decode())
    return message("{process} on {host}", process=process, host=found[2].decode()) if found[2] else process


def _no_lock(file: Path) -> WrongUse:
    hint = message("no run of patchctl made it so: look at it, and remove it")
    return WrongUse(
        message("the lock has to be a file of its own, and is a link, a folder or a device"), where=str(file), hint=hint
    )


def _denied(error: OSError, file: Path) -> PatchctlError:
    instead = message("name a workspace of your own with --workspace")
    return as_user_error(error, message("the workspace cannot be written"), instead, file.parent.parent)


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


def clean_up(workspace: Path, state: WorkspaceState | None) -> dict[str, Path]:
    """Remove what neither journal nor state names: repositories in preparation, and those of forgotten checkouts.

    Call it under the lock. A repository of the latter that holds kept edits moves to kept/ instead; returns its new place by
    upstream.
    """
    own = workspace / FOLDER
    shutil.rmtree(own / "new", ignore_errors=True)
    for name in UNFINISHED:
        (own / name).unlink(missing_ok=True)
    for name, tree in (state.trees if state else {}).items():
        packs = Tree.of(workspace, name, tree).git_dir / "objects" / "pack"
        for left in (found for pattern in UNFINISHED_PACKS for found in packs.glob(pattern)):
            left.unlink()
    kept: dict[str, Path] = {}
    used = {name for name, tree in state.trees.items() if tree.kind == "into"} if state else set()
    for git_dir in sorted((own / "into").glob("*.git")):
        name = git_dir.name.removesuffix(".git")
        if name not in used:
            place = _let_go(own, name, git_dir)
            if place is not None:
                kept[name] = place
    with contextlib.suppress(OSError):  # it does not exist, or is not empty
        (own / "into").rmdir()
    return kept


def _let_go(own: Path, name: str, git_dir: Path) -> Path | None:
    if not _has_branches(git_dir):
        shutil.rmtree(git_dir, ignore_errors=True)
        return None
    (own / "kept").mkdir(exist_ok=True)
    number = 1
    while (place := own / "kept" / f"{name}-{number}.git").exists():
        number += 1
    git_dir.rename(place)
    return place


def _has_branches(git_dir: Path) -> bool:
    """By its files: git may be unable to read a repository from which a person can still rescue work."""
    packed = git_dir / "packed-refs"
    if packed.is_file() and b" refs/heads/" in packed.read_bytes():
        return True
    return any(p.is_file() for p in (git_dir / "refs" / "heads").rglob("*"))


def drop_own_locks(trees: Iterable[Tree]) -> None:
    """Remove the locks that a killed run of ours left in these trees' repositories and in their owners'. Call it under the lock."""
    places = []
    for tree in trees:
        places.append(tree.git_dir)
        owner = find_git_dir(tree.folder) if tree.kind == "into" else None
        if owner is not None:
            places.append(object_store(owner).parent)
    drop_own(places)
