"""Reads files named by users or tracebacks, completely and without blocking."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from patchctl.errors import WrongUse

# No source file, log or plan comes near this.
_LARGEST = 1 << 30


def regular_file(file: Path, limit: int = _LARGEST) -> bytes | None:
    """Return the content of a regular file of at most `limit` bytes; None for anything else, even invalid names."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    with os.fdopen(handle, "rb") as content:
        status = os.fstat(handle)
        return content.read() if stat.S_ISREG(status.st_mode) and status.st_size <= limit else None


def named_file(file: Path) -> bytes:
    """Return the content of a file named on the command line, or of a shell's process substitution (`<(...)`).

    Raises WrongUse for a named pipe, which could block forever; OSError; ValueError for an invalid name.
    """
    if stat.S_ISFIFO(os.stat(file).st_mode) and not str(file).startswith(("/dev/", "/proc/")):
        raise WrongUse(
            f"{file} is a named pipe", hint="name a regular file, or use standard input where `-` is accepted"
        )
    return file.read_bytes()
