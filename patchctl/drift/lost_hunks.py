"""Finds the upstream commit that removed a lost hunk's lines, between two releases of one repository."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from patchctl.drift.file_drift import is_taken, stands_in
from patchctl.drift.types import CONFLICT, LOST, UPSTREAM, HunkDrift, PatchDrift
from patchctl.git.catfile import ObjectReader
from patchctl.git.revisions import commits_touching
from patchctl.patch.names import path_text
from patchctl.patch.parse import Hunk
from patchctl.source.upstream_releases import RevisionTree, UpstreamRelease
from patchctl.stack.patches import StackPatch

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
        (p.feature, path_text(c.path), h.line): (c.path, h) for p in patches for c in p.patch.changes for h in c.hunks
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
