"""Replaces one list or mapping in a manifest and keeps every other byte, comments included; and the lock of those
who write: export, import, new.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from patchctl.errors import WorkspaceBusy, WrongUse


def rewrite_list(text: str, key: str, items: Sequence[str]) -> str:
    """Return `text` with `items` as the top-level list `key`. Raises WrongUse unless it is a block list."""
    lines = text.split("\n")
    found = _block(lines, key)
    if found is None:
        raise WrongUse(f"the manifest has no block list `{key}:`", hint="write it with one `- item` per line")
    block = [f"{key}:", *(f"  - {item}" for item in items)] if items else [f"{key}: []"]
    return "\n".join([*lines[: found.start], *block, *lines[found.stop :]])


def rewrite_texts(text: str, key: str, texts: Mapping[str, str]) -> str:
    """Return `text` with `texts` as the top-level mapping `key`, in place or before `generated:`; removed if empty."""
    lines = text.rstrip("\n").split("\n")
    last = next((i for i, line in enumerate(lines) if line.startswith("generated:")), len(lines))
    found = _block(lines, key) or range(last, last)
    own = [f"  {name}: {json.dumps(one, ensure_ascii=False)}" for name, one in texts.items()]
    return "\n".join([*lines[: found.start], *([f"{key}:", *own] if own else []), *lines[found.stop :], ""])


def _block(lines: Sequence[str], key: str) -> range | None:
    """Return the lines of a top-level key and its value."""
    heads = (f"{key}:", f"{key}: []", f"{key}: {{}}")
    start = next((i for i, line in enumerate(lines) if line.split("#")[0].rstrip() in heads), None)
    if start is None:
        return None
    end = start + 1
    while end < len(lines) and lines[end].startswith((" ", "-", "#")):
        end += 1
    while lines[end - 1].startswith("#"):  # comments before the next key belong to it
        end -= 1
    return range(start, end)


@contextmanager
def exclusive_writer(root: Path) -> Iterator[None]:
    """Hold the distribution's lock for the block. Raises WorkspaceBusy if another run holds it.

    The lock is flock on the folder manifests/: it ends with the process and leaves no file. File systems that cannot
    lock folders have no lock.
    """
    handle = os.open(root / "manifests", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            hint = "wait for it to finish; the lock of a dead process is released"
            raise WorkspaceBusy(
                "another run is writing patches of this distribution", where=str(root), hint=hint
            ) from error
        except OSError:
            pass
        yield
    finally:
        os.close(handle)
