"""What an export is about to write, noted in its work tree before it writes, so that the next one can go on after a kill.

Patch files that are neither what the work tree was made of nor what it gives were changed by somebody, and an export stops at
them. Those that a killed export left are a mixture of both, and are told from an edit by this note alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from patchctl.atomic import replace_file

_NOTE = "patchctl-exporting.json"
Series = Iterable[tuple[str, bytes, Mapping[str, bytes]]]  # of each patch its file's name, its bytes, its carried files


def note_export(folder: Path, before: Series, after: Series) -> None:
    """Note what the files are and what they will be. Raises OSError."""
    known: dict[str, list[str]] = {}
    for side in (before, after):
        for path, digest in _digests(side).items():
            known.setdefault(path, []).append(digest)
    replace_file(_file(folder), json.dumps(known, indent=1, sort_keys=True).encode())


def is_half_exported(folder: Path, now: Series) -> bool:
    """Whether an export of this work tree was interrupted, and each file is as before it or as after it."""
    try:
        known = json.loads(_file(folder).read_bytes())
        return all(digest in known.get(path, ()) for path, digest in _digests(now).items())
    except (FileNotFoundError, ValueError, TypeError, AttributeError):
        return False


def end_export(folder: Path) -> None:
    """All is written and marked. Raises OSError."""
    _file(folder).unlink(missing_ok=True)


def _digests(series: Series) -> dict[str, str]:
    found = {}
    for name, data, carried in series:
        for path, content in ((name, data), *((f"files/{p}", c) for p, c in carried.items())):
            found[path] = hashlib.sha256(content).hexdigest()
    return found


def _file(folder: Path) -> Path:
    return folder / ".git" / _NOTE
