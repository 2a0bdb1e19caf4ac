"""Turns OS errors (permissions, full disk, limits) into messages that name the owner and a remedy."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from patchctl.errors import MachineFailed, PatchctlError, WrongUse

_PERMISSION = (errno.EACCES, errno.EPERM)
# Recognisable without a path: a full disk is reported by a write, which names none.
_OF_THE_MACHINE = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM),
)
# tempfile's message (ENOENT) if every folder that it tries is full or closed
_NO_FOLDER = "No usable temporary directory"
_AGAIN = "free some space or repair the disk, then run the same command again"


def as_user_error(error: OSError, what: str, instead: str, where: Path | None = None) -> PatchctlError:
    """Return MachineFailed for a disk or limit, else WrongUse, with the path and, for a permission, its owner.

    The path is the error's, else `where`; `instead` is an alternative for the user.
    """
    place = _place(error) or where
    hint = "; or ".join(part for part in (_whose(error, place), instead) if part)
    return error_type(error)(
        f"{what}: {error.strerror or error}", where=str(place) if place else None, hint=hint or None
    )


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
        return as_user_error(error, "this cannot be read or written", _AGAIN)
    if error.errno in _PERMISSION and _place(error) is not None:
        return as_user_error(error, "this cannot be read or written", "")
    if error.errno == errno.ENAMETOOLONG:
        return WrongUse(f"file name too long: {str(_place(error))[:200]}...", hint="use a shorter name")
    if _NO_FOLDER in str(error):
        hint = f"set TMPDIR to a writable folder; or {_AGAIN}"
        return as_user_error(error, "cannot write a temporary file", hint)
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
        return f"{there} is yours, but its mode is {status.st_mode & 0o7777:04o}: `chmod u+rwX`"
    if status.st_uid == 0:
        made = _made_by_root(there)
        if made is not None:
            return f"{there} belongs to root: run `sudo chown -R {os.geteuid()} {made}`, and always run patchctl as the same user"
        return f"{there} belongs to root, and you are {mine}: run it as root"
    return (
        f"{there} belongs to {owner} (group {group}, mode {status.st_mode & 0o7777:04o}) and you are {mine}: ask {owner} for"
        f" `chmod -R g+rwX` and a common group"
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
