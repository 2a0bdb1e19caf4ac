"""Finds which of a stack's patches a file has, if it does not have all that the lock records.

The lock has a file's blob after each patch of the full stack, but profiles leave patches out. So patches are reverted
from the file, in every combination, until the pin's blob is left. Hunks are searched for, which is not fuzz here: the
final blob id proves that every line was right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path

from patchctl.errors import PatchctlError
from patchctl.git.objects import object_id
from patchctl.identify.known import KnownTree
from patchctl.manifest.lock import LockedPatch
from patchctl.patch.hunks import split_lines
from patchctl.patch.parse import Hunk
from patchctl.stack.patches import load_patch

# At most this many combinations. The first is nearly always right; for unrelated files the work would double with
# each patch. Nine of verl's patches touch megatron_workers.py.
_MOST_WAYS = 256


def applied_patches(known: KnownTree, path: bytes, data: bytes) -> frozenset[int] | None:
    """Return the patches whose removal gives the pin's file, by number; None if no combination does."""
    entry = known.files.get(path)
    numbers = known.touched.get(path, ())
    if entry is None or not numbers:
        return None
    hunks = {n: _hunks(known, known.patches[n], path) for n in numbers}
    for lines, chosen in islice(_ways(split_lines(data), numbers, hunks), _MOST_WAYS):
        if object_id("blob", b"".join(lines)) == entry.id:
            return frozenset(chosen)
    return None


def _ways(
    lines: list[bytes], numbers: Sequence[int], hunks: Mapping[int, list[Hunk] | None]
) -> Iterator[tuple[list[bytes], tuple[int, ...]]]:
    """Yield the file without some patches, and which; starting with all that can be reverted removed."""
    if not numbers:
        yield lines, ()
        return
    *earlier, last = numbers
    without = _without(lines, hunks[last])
    if without is not None:
        for left, chosen in _ways(without, earlier, hunks):
            yield left, (*chosen, last)
    yield from _ways(lines, earlier, hunks)


def _without(lines: list[bytes], hunks: list[Hunk] | None) -> list[bytes] | None:
    """Revert hunks, each at the match of its new lines nearest to its recorded place; None if that fails."""
    if hunks is None:
        return None
    out = list(lines)
    for hunk in reversed(hunks):
        size = len(hunk.new)
        places = [i for i in range(len(out) - size + 1) if out[i : i + size] == hunk.new]
        if not places or not size:
            return None
        at = min(places, key=lambda i: abs(i + 1 - hunk.new_start))
        out[at : at + size] = hunk.old
    return out


def _hunks(known: KnownTree, locked: LockedPatch, path: bytes) -> list[Hunk] | None:
    """Return a patch's hunks for one file; None if it changes it otherwise, or is not the locked patch."""
    file = known.patch_files.get(locked.file)
    return _changes(file, locked.digest).get(path) if file is not None else None


@cache
def _changes(file: Path, digest: str) -> dict[bytes, list[Hunk]]:
    try:
        patch = load_patch(file, file.parent)
    except PatchctlError:
        return {}
    if patch.digest != digest:
        return {}
    return {c.path: c.hunks for c in patch.patch.changes if c.kind == "modify" and c.binary is None}
