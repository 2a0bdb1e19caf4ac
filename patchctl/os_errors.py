"""Turns OS errors (permissions, full disk, limits) into messages that name the owner and a remedy; reads files that users or tracebacks
name, completely and without blocking."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from patchctl.errors import MachineFailed, PatchctlError, WrongUse
from patchctl.language import joined, message

_PERMISSION = (errno.EACCES, errno.EPERM)
# Recognisable without a path: a full disk is reported by a write, which names none.
_OF_THE_MACHINE = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM),
)
_SAID: dict[str, str] = {
    each: each
    for each in (
        message("No space left on device"),
        message("Disk quota exceeded"),
        message("File too large"),
        message("Read-only file system"),
        message("Input/output error"),
        message("Stale file handle"),
        message("Too many open files"),
        message("Cannot allocate memory"),
        message("Permission denied"),
        message("Operation not permitted"),
        message("No such file or directory"),
        message("Not a directory"),
        message("permission denied"),
        message("its file system is read-only"),
    )
}
# tempfile's message (ENOENT) if every folder that it tries is full or closed
_NO_FOLDER = "No usable temporary directory"
_AGAIN = message("free some space or repair the disk, then run the same command again")


def as_user_error(error: OSError, what: str, instead: str, where: Path | None = None) -> PatchctlError:
    """Return MachineFailed for a disk or limit, else WrongUse, with the path and, for a permission, its owner.

    The path is the error's, else `where`; `instead` is an alternative for the user.
    """
    place = _place(error) or where
    hint = joined((part for part in (_whose(error, place), instead) if part), "; or ")
    return error_type(error)(
        message("{what}: {more}", what=what, more=os_reason(error)),
        where=str(place) if place else None,
        hint=hint or None,
    )


def os_reason(error: OSError) -> str:
    """Return what the system says of an error: a message for the errors that a full or closed disk gives."""
    said = error.strerror or str(error)
    return _SAID.get(said, said)


def error_type(error: OSError) -> type[PatchctlError]:
    """Return MachineFailed if the same run may succeed later, else WrongUse."""
    # A read-only file system stays so: another folder is needed, not a retry.
    failed = (is_resource_error(error) and error.errno != errno.EROFS) or _NO_FOLDER in str(error)
    return MachineFailed if failed else WrongUse


def is_resource_error(error: Exception) -> bool:
    """Whether a disk or a limit is the cause, which says nothing about the data."""
    return isinstance(error, OSError) and error.errno in _OF_THE_MACHINE


def user_error_or_none(error: OSError) -> PatchctlError | None:
    """Return the refusal for an error caused by the machine, wherever it came from; None for others."""
    if is_resource_error(error):
        hint = message("name another place") if error.errno == errno.EROFS else _AGAIN
        return as_user_error(error, message("this cannot be read or written"), hint)
    if error.errno in _PERMISSION and _place(error) is not None:
        return as_user_error(error, message("this cannot be read or written"), "")
    if error.errno == errno.ENAMETOOLONG:
        return WrongUse(
            message("file name too long: {path}...", path=str(_place(error))[:200]), hint=message("use a shorter name")
        )
    if error.errno == errno.ENOTDIR and (place := _place(error)) is not None:
        there = next((p for p in (*reversed(place.parents), place) if p.is_file()), place)
        return WrongUse(message("this is no folder"), where=str(there), hint=message("name another place"))
    if _NO_FOLDER in str(error):
        hint = message("set TMPDIR to a writable folder; or {again}", again=_AGAIN)
        return as_user_error(error, message("cannot write a temporary file"), hint)
    return None


def _place(error: OSError) -> Path | None:
    name = error.filename
    return Path(os.fsdecode(name)) if isinstance(name, str | bytes) else None


def _whose(error: OSError, place: Path | None) -> str:
    """Describe the owner of the first folder on the way to `place` that we may see but not use."""
    if error.errno not in _PERMISSION or place is None:
        return ""
    there = next((p for p in (place, *place.parents) if os.path.lexists(p)), place)
    try:
        status = there.lstat()
    except OSError:
        return ""
    owner, group = _name("pwd", status.st_uid), _name("grp", status.st_gid)
    mine = _name("pwd", os.geteuid())
    if status.st_uid == os.geteuid():
        mode = f"{status.st_mode & 0o7777:04o}"
        return message("{folder} is yours, but its mode is {mode}: `chmod u+rwX`", folder=there, mode=mode)
    if status.st_uid == 0:
        made = _made_by_root(there)
        if made is not None:
            return message(
                "{folder} belongs to root: run `sudo chown -R {user} {made}`, and always run patchctl as the same user",
                folder=there,
                user=os.geteuid(),
                made=made,
            )
        return message("{folder} belongs to root, and you are {user}: run it as root", folder=there, user=mine)
    return message(
        "{folder} belongs to {owner} (group {group}, mode {mode}) and you are {user}: ask {owner} for `chmod -R g+rwX` and a common group",
        folder=there,
        owner=owner,
        group=group,
        mode=f"{status.st_mode & 0o7777:04o}",
        user=mine,
    )


def _made_by_root(folder: Path) -> Path | None:
    """Return the topmost folder of root's on the way to `folder` that is inside one of ours, or None."""
    for path in (folder, *folder.parents):
        owner = path.parent.lstat().st_uid
        if owner == os.geteuid():
            return path
        if owner != 0:
            return None
    return None


def _name(book: str, number: int) -> str:
    """Return a user's or group's name, or the number if this machine has none for it, as in a container."""
    import grp
    import pwd

    try:
        return pwd.getpwuid(number).pw_name if book == "pwd" else grp.getgrgid(number).gr_name
    except KeyError:
        return f"{'uid' if book == 'pwd' else 'gid'} {number}"


# No source file, log or plan comes near this.
_LARGEST = 1 << 30


def regular_file(file: Path, limit: int = _LARGEST) -> bytes | None:
    """Return the content of a regular file of at most `limit` bytes; None for anything else, even invalid names."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
        os.close(handle)
        return None
    with os.fdopen(handle, "rb") as content:
        return content.read()


def named_file(file: Path) -> bytes:
    """Return the content of a file named on the command line, or of a shell's process substitution (`<(...)`).

    Raises WrongUse for a named pipe, which could block forever; OSError; ValueError for an invalid name.
    """
    if stat.S_ISFIFO(os.stat(file).st_mode) and not str(file).startswith(("/dev/", "/proc/")):
        raise WrongUse(
            f"{file} is a named pipe", hint="name a regular file, or use standard input where `-` is accepted"
        )
    return file.read_bytes()
