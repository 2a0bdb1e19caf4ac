"""How a patch's change of one file fares on another revision of that file, where upstream moved the file, and which commit
removed a lost hunk's lines.

Contents come in as bytes; git merges what does not stand where the patch says.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from patchctl.drift.types import CONFLICT, EXACT, FITS, GONE, LOST, MOVED, THREE_WAY, UPSTREAM, HunkDrift, PatchDrift
from patchctl.git.catfile import ObjectReader
from patchctl.git.history import commits_touching, merge_file
from patchctl.patch.hunks import hunk_position, split_lines
from patchctl.patch.parse import FileChange, Hunk
from patchctl.source.upstream_releases import RevisionTree, UpstreamRelease
from patchctl.stack.patches import StackPatch


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
    hunks = change.hunks if change is not None else []
    if before == ours:
        return FileOutcome(EXACT, tuple(HunkDrift(h.line, h.old_start, FITS) for h in hunks), after)
    if ours == after:
        return FileOutcome(UPSTREAM, tuple(HunkDrift(h.line, h.old_start, UPSTREAM) for h in hunks), ours)
    if ours is None:
        return FileOutcome(GONE)
    if before is None or after is None or not hunks:
        return FileOutcome(CONFLICT)  # two files of one name; a file to be deleted that was changed; binary
    return _merged(hunks, before, after, ours)


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
    rows = tuple(
        _stands(h, p) if p is not None else HunkDrift(h.line, h.old_start, THREE_WAY)
        for h, p in zip(hunks, places, strict=True)
    )
    return FileOutcome(MOVED if _replayed(hunks, places, ours) == content else THREE_WAY, rows, content)


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


Known = Mapping[tuple[str, str, int], HunkDrift]
"""Lost hunks of the release before whose commit is known, by feature, path and line."""


def known_of(found: Sequence[PatchDrift]) -> Known:
    """The hunks whose commit was found."""
    return {(p.feature, f.path, h.line): h for p in found for f in p.files for h in f.hunks if h.commit is not None}


def with_commits(
    found: Sequence[PatchDrift],
    patches: Sequence[StackPatch],
    reader: ObjectReader,
    before: UpstreamRelease,
    release: UpstreamRelease,
    known: Known,
) -> list[PatchDrift]:
    """`found` with the commit of every hunk that was lost between `before` and `release`."""
    if not (before.history and release.history and before.repo == release.repo):
        return list(found)
    hunks = {
        (p.feature, os.fsdecode(c.path), h.line): (c.path, h) for p in patches for c in p.patch.changes for h in c.hunks
    }
    lost = [hunks[p.feature, f.path, h.line][0] for p in found for f in p.files for h in f.hunks if h.state == LOST]
    if not lost:
        return list(found)
    walk = _Walk(
        reader, before.commit, commits_touching(release.repo, before.commit, release.commit, sorted(set(lost)))
    )
    rows = []
    for patch in found:
        files = []
        for file in patch.files:
            own = []
            for one in file.hunks:
                key = (patch.feature, file.path, one.line)
                if one.state == LOST and key in known:
                    one = replace(known[key], by=0)
                elif one.state == LOST:
                    one = walk.explained(one, *hunks[key])
                own.append(one)
            files.append(replace(file, hunks=tuple(own)))
        rows.append(_taken(replace(patch, files=tuple(files))))
    return rows


def _taken(patch: PatchDrift) -> PatchDrift:
    """Mark a patch as taken if upstream took all its lost hunks and changed them since; the last such commit counts."""
    hunks = [h for f in patch.files for h in f.hunks]
    commits = [h.commit for h in hunks if h.state == UPSTREAM and h.commit]
    if patch.state == CONFLICT and commits and all(h.state == UPSTREAM for h in hunks):
        return replace(patch, taken=commits[-1])
    return patch


class _Walk:
    """The commits between two releases, by the files that they touch."""

    def __init__(self, reader: ObjectReader, start: str, commits: Mapping[bytes, Sequence[str]]) -> None:
        self._reader, self._start, self._commits = reader, start, commits

    def explained(self, drift: HunkDrift, path: bytes, hunk: Hunk) -> HunkDrift:
        """Add the first commit after which the old lines are gone. Unchanged if upstream never had them: they are lines of another
        patch, which does not arrive either."""
        if not self._has(self._start, path, hunk):
            return drift
        commits = self._commits.get(path, ())
        low, high = 0, len(commits)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self._has(commits[middle], path, hunk) else (low, middle)
        if low == len(commits):
            return drift
        commit = commits[low]
        content = self._content(commit, path)
        state = UPSTREAM if content is not None and is_taken(hunk, content) else LOST
        message = self._reader.read(commit)[1].partition(b"\n\n")[2].partition(b"\n")[0]
        return replace(drift, state=state, commit=commit, subject=message.decode("utf-8", "replace")[:200])

    def _has(self, commit: str, path: bytes, hunk: Hunk) -> bool:
        content = self._content(commit, path)
        return content is not None and stands_in(hunk, content)

    def _content(self, commit: str, path: bytes) -> bytes | None:
        tree = self._reader.read(commit)[1][5:45].decode("ascii")
        return RevisionTree(self._reader, tree).read(path)
