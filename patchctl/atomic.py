"""Files and folders that are written whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from pathlib import Path


def replace_file(file: Path, data: bytes) -> None:
    """Put `data` in the place of `file`, on disk before this returns: beside it first, synchronised, then by rename.

    A reader, or a run after a kill, finds the old bytes or the new ones. The name of the unfinished file is the same each time,
    so that a later run writes over what a killed one left. Raises OSError.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.new")
    with temporary.open("wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(file)


def new_folder(parent: Path, prefix: str) -> Path:
    """A new folder in `parent`, to be filled and renamed. Raises OSError.

    Unlike tempfile's it is for whom the umask says, since it becomes a place that several users may share.
    """
    parent.mkdir(parents=True, exist_ok=True)
    folder = parent / f"{prefix}{secrets.token_hex(8)}"
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
