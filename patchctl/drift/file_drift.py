"""How a patch's change of one file fares on another revision of that file, and where upstream moved the file.

Contents come in as bytes; git merges what does not stand where the patch says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from patchctl.drift.types import CONFLICT, EXACT, FITS, GONE, LOST, MOVED, THREE_WAY, UPSTREAM, HunkDrift
from patchctl.git.merge import merge_file
from patchctl.patch.hunks import hunk_position, split_lines
from patchctl.patch.parse import FileChange, Hunk
from patchctl.source.upstream_releases import RevisionTree


@dataclass(frozen=True)
class FileOutcome:
    """A file's verdict and its new content; None if the file is deleted, or the patch does not arrive."""

    state: str
    hunks: tuple[HunkDrift, ...] = ()
    content: bytes | None = None


class FileJudge:
    """Caches verdicts: most files are the same in several releases."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, bytes | None, bytes | None, bytes | None], FileOutcome] = {}

    def judge(
        self, change: FileChange | None, before: bytes | None, after: bytes | None, ours: bytes | None
    ) -> FileOutcome:
        """The verdict. `change` is None for a carried file; a content of None is a missing file."""
        key = (id(change), before, after, ours)
        if key not in self._known:
            self._known[key] = _judge(change, before, after, ours)
        return self._known[key]


def _judge(change: FileChange | None, before: bytes | None, after: bytes | None, ours: bytes | None) -> FileOutcome:
    if before == ours:
        hunks = change.hunks if change is not None else []
        return FileOutcome(EXACT, tuple(HunkDrift(h.line, h.old_start, FITS) for h in hunks), after)
    if ours == after:
        hunks = change.hunks if change is not None else []
        return FileOutcome(UPSTREAM, tuple(HunkDrift(h.line, h.old_start, UPSTREAM) for h in hunks), ours)
    if ours is None:
        return FileOutcome(GONE)
    if before is None or after is None or change is None or not change.hunks:
        return FileOutcome(CONFLICT)  # two files of one name; a file to be deleted that was changed; binary
    return _merged(change.hunks, before, after, ours)


def _merged(hunks: Sequence[Hunk], before: bytes, after: bytes, ours: bytes) -> FileOutcome:
    content = merge_file(before, ours, after)
    places = _places(hunks, ours)
    if content is None:
        found = tuple(_single_hunk(h, p, before, ours) for h, p in zip(hunks, places, strict=True))
        if all(h.state == UPSTREAM for h in found):
            return FileOutcome(UPSTREAM, found, ours)
        return FileOutcome(CONFLICT, found)
    if content == ours:
        return FileOutcome(UPSTREAM, tuple(HunkDrift(h.line, h.old_start, UPSTREAM) for h in hunks), ours)
    if _replayed(hunks, places, ours) == content:
        return FileOutcome(
            MOVED, tuple(_stands(h, p) for h, p in zip(hunks, places, strict=True) if p is not None), content
        )
    rows = tuple(
        _stands(h, p) if p is not None else HunkDrift(h.line, h.old_start, THREE_WAY)
        for h, p in zip(hunks, places, strict=True)
    )
    return FileOutcome(THREE_WAY, rows, content)


def _stands(hunk: Hunk, place: int) -> HunkDrift:
    by = place - hunk_position(hunk)
    return HunkDrift(hunk.line, hunk.old_start, MOVED if by else FITS, by)


def _single_hunk(hunk: Hunk, place: int | None, before: bytes, ours: bytes) -> HunkDrift:
    """The verdict on one hunk of a conflicting file, by itself."""
    if place is not None:
        return _stands(hunk, place)
    if is_taken(hunk, ours):
        return HunkDrift(hunk.line, hunk.old_start, UPSTREAM)
    lines = split_lines(before)
    first = hunk_position(hunk)
    only = b"".join((*lines[:first], *hunk.new, *lines[first + len(hunk.old) :]))
    arrives = merge_file(before, ours, only) is not None
    return HunkDrift(hunk.line, hunk.old_start, THREE_WAY if arrives else LOST)


def is_taken(hunk: Hunk, content: bytes) -> bool:
    """Whether the file has the hunk already: its new lines, and not its old ones."""
    return bool(hunk.new) and _stand(hunk.new, content) and not stands_in(hunk, content)


def stands_in(hunk: Hunk, content: bytes) -> bool:
    """Whether the file has the hunk's old lines somewhere."""
    return _stand(hunk.old, content)


def _stand(lines: Sequence[bytes], content: bytes) -> bool:
    return (b"\n" + content).find(b"\n" + b"".join(lines)) >= 0


def _places(hunks: Sequence[Hunk], ours: bytes) -> list[int | None]:
    """The 0-based line of each hunk's old lines, after the hunk before it and nearest to where it should be. None if they are
    nowhere, or if two places are equally near."""
    places: list[int | None] = []
    low = shift = 0
    for hunk in hunks:
        wanted = hunk_position(hunk) + shift
        all_of_it = [p for p in _lines_where(hunk.old, ours) if p >= low] if hunk.old else []
        nearest = sorted(all_of_it, key=lambda p: abs(p - wanted))[:2]
        if not nearest or (len(nearest) == 2 and abs(nearest[0] - wanted) == abs(nearest[1] - wanted)):
            places.append(None)
            continue
        places.append(nearest[0])
        low, shift = nearest[0] + len(hunk.old), nearest[0] - hunk_position(hunk)
    return places


def _lines_where(old: Sequence[bytes], content: bytes) -> list[int]:
    found = []
    text, wanted = b"\n" + content, b"\n" + b"".join(old)
    at = text.find(wanted)
    while at >= 0:
        found.append(text.count(b"\n", 0, at))
        at = text.find(wanted, at + 1)
    return found


def _replayed(hunks: Sequence[Hunk], places: Sequence[int | None], ours: bytes) -> bytes | None:
    """The file with each hunk applied at its place; None if a hunk has none."""
    lines = split_lines(ours)
    for hunk, place in reversed(list(zip(hunks, places, strict=True))):
        if place is None:
            return None
        lines[place : place + len(hunk.old)] = hunk.new
    return b"".join(lines)


_ALIKE = 0.5
_MOST_READ = 64


def renamed(path: bytes, content: bytes, old: RevisionTree, new: RevisionTree) -> bytes | None:
    """Where upstream moved `path` of `old`: the path in `new` of a new file with the same content; else of one with the same name or
    in the same folder that shares more than half of its bytes, git's own threshold. None if there is none."""
    there = old.entry(path)
    fresh = [p for p in new.files if p not in old.files]
    same = [p for p in fresh if there is not None and new.files[p].id == there.id]
    if same:
        return min(same)
    folder, _, name = path.rpartition(b"/")
    near = [p for p in fresh if p.endswith(b"/" + name)]
    near += [p for p in fresh if p.rpartition(b"/")[0] == folder and p not in near]
    scored = [(_alike(content, data), p) for p in near[:_MOST_READ] if (data := new.read(p)) is not None]
    best = max(scored, default=(0.0, b""))
    return best[1] if best[0] >= _ALIKE else None


def _alike(one: bytes, other: bytes) -> float:
    """The share of the larger file's bytes on lines that both have."""
    shared = Counter(split_lines(one)) & Counter(split_lines(other))
    return sum(len(line) * n for line, n in shared.items()) / max(len(one), len(other), 1)
