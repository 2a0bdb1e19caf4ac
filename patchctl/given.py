"""Files that somebody names, or a traceback does: read whole, without waiting for what never comes."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from patchctl.errors import WrongUse

# No source of an upstream, no log and no plan comes near.
_LARGEST = 1 << 30


def regular_file(file: Path, limit: int = _LARGEST) -> bytes | None:
    """The content of a regular file of at most `limit` bytes; None for anything else, and for what cannot be a file's name."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    with os.fdopen(handle, "rb") as content:
        status = os.fstat(handle)
        return content.read() if stat.S_ISREG(status.st_mode) and status.st_size <= limit else None


def named_file(file: Path) -> bytes:
    """The content of a file that is named on the command line, or of the pipe that a shell puts there (`<(...)`).

    Raises WrongUse for a named pipe, which might be waited for without an end, OSError, and ValueError for what is no file's name.
    """
    if stat.S_ISFIFO(os.stat(file).st_mode) and not str(file).startswith(("/dev/", "/proc/")):
        raise WrongUse(f"{file} is a named pipe", hint="name a file, or give it to standard input where `-` is taken")
    return file.read_bytes()
