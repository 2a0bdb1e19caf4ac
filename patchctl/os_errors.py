"""What to say when the system lets us not write or read: whose the place is, and what to do. Never "busy", never a fault."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from patchctl.errors import MachineFailed, PatchctlError, WrongUse

_PERMISSION = (errno.EACCES, errno.EPERM)
# These need no path to be told from a fault of ours: a full disk is met by a write, which names none.
_OF_THE_MACHINE = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM),
)
# tempfile's words, of ENOENT: every folder that it tries is full or closed
_NO_FOLDER = "No usable temporary directory"
_AGAIN = "when there is room, and the disk can be written and read, run the same again"


def as_user_error(error: OSError, what: str, instead: str, where: Path | None = None) -> PatchctlError:
    """MachineFailed for a disk and for limits, else WrongUse; it names the path (of the error, else `where`) and, where a
    permission lacks, its owner. `instead` is what else the user can do."""
    place = _place(error) or where
    hint = "; or ".join(part for part in (_whose(error, place), instead) if part)
    return error_type(error)(
        f"{what}: {error.strerror or error}", where=str(place) if place else None, hint=hint or None
    )


def error_type(error: OSError) -> type[PatchctlError]:
    """What to raise: MachineFailed where the same may go well later, else WrongUse."""
    # A file system that is mounted to be read stays so: another folder is wanted, not another try.
    failed = (is_resource_error(error) and error.errno != errno.EROFS) or _NO_FOLDER in str(error)
    return MachineFailed if failed else WrongUse


def is_resource_error(error: Exception) -> bool:
    """Whether a disk or a limit is the reason: it says nothing of what was looked at."""
    return isinstance(error, OSError) and error.errno in _OF_THE_MACHINE


def user_error_or_none(error: OSError) -> PatchctlError | None:
    """The refusal for an error that the machine is the reason of, wherever it came from; None for all others."""
    if is_resource_error(error):
        return as_user_error(error, "this cannot be read or written", _AGAIN)
    if error.errno in _PERMISSION and _place(error) is not None:
        return as_user_error(error, "this cannot be read or written", "")
    if error.errno == errno.ENAMETOOLONG:
        return WrongUse(f"a name is too long: {str(_place(error))[:200]}...", hint="give a shorter one")
    if _NO_FOLDER in str(error):
        hint = f"name a folder that can be, with TMPDIR; or {_AGAIN}"
        return as_user_error(error, "no temporary file can be written", hint)
    return None


def _place(error: OSError) -> Path | None:
    name = error.filename
    return Path(os.fsdecode(name)) if isinstance(name, str | bytes) else None


def _whose(error: OSError, place: Path | None) -> str:
    """The owner of the first thing on the way to `place` that is ours to look at but not to use."""
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
        return f"{there} is yours, and its mode {status.st_mode & 0o7777:04o} forbids it: `chmod u+rwX`"
    if status.st_uid == 0:
        made = _made_by_root(there)
        if made is not None:
            return f"{there} belongs to root: `sudo chown -R {os.geteuid()} {made}`, and run patchctl as one user"
        return f"{there} belongs to root, and you are {mine}: run it as root"
    return (
        f"{there} belongs to {owner} (group {group}, mode {status.st_mode & 0o7777:04o}) and you are {mine}: ask {owner} for"
        f" `chmod -R g+rwX` and a group that you share"
    )


def _made_by_root(folder: Path) -> Path | None:
    """The topmost of root's folders on the way to `folder` that lies in a folder of ours; None where none does."""
    for path in (folder, *folder.parents):
        owner = path.parent.lstat().st_uid
        if owner == os.geteuid():
            return path
        if owner != 0:
            return None
    return None


def _name(book: str, number: int) -> str:
    """A user's or a group's name; the number for one that this machine has none for, as in a container."""
    import grp
    import pwd

    try:
        return pwd.getpwuid(number).pw_name if book == "pwd" else grp.getgrgid(number).gr_name
    except KeyError:
        return f"{'uid' if book == 'pwd' else 'gid'} {number}"
