"""Files that are written whole or not at all."""

from __future__ import annotations

import os
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
