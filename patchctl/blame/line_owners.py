"""The owner of each line of a patched file: upstream, or the last patch that wrote it.

The patches are reversed one by one, which needs the file and the patches, but no repository and no source. In a workspace each
patch is a commit, and `git blame` answers.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from patchctl.git.worktree import WorkTree
from patchctl.patch.hunks import split_lines
from patchctl.patch.parse import FileChange, Hunk
from patchctl.stack.patches import StackPatch

_BLAMED = re.compile(rb"(?m)^([0-9a-f]{40}) \d+ (\d+)(?: \d+)?$")
_Lines = list["tuple[bytes, int | None]"]


@dataclass(frozen=True)
class Owned:
    """The number of the patch that owns each line, None for upstream; `before` is the unpatched content, None if a patch adds the
    file."""

    owners: tuple[int | None, ...]
    before: bytes | None


def owners_of(path: bytes, content: bytes, patches: Sequence[StackPatch]) -> Owned | None:
    """The owners of the lines of a file to which these patches were applied in order; None if they were not."""
    lines: _Lines = [(text, number) for number, text in enumerate(split_lines(content))]
    owners: list[int | None] = [None] * len(lines)
    for number in reversed(range(len(patches))):
        change = next((c for c in patches[number].patch.changes if c.new_path == path), None)
        if path.decode("utf-8", "surrogateescape") in patches[number].carried or (change and change.kind == "add"):
            for _, index in lines:
                if index is not None:
                    owners[index] = number
            return Owned(tuple(owners), None)
        if change is None:
            continue
        found = _without(lines, change)
        if found is None:
            return None
        lines, written = found
        for index in written:
            owners[index] = number
        path = change.old_path or path
    return Owned(tuple(owners), b"".join(text for text, _ in lines))


def _without(lines: _Lines, change: FileChange) -> tuple[_Lines, list[int]] | None:
    """The lines before a change, and those that it wrote."""
    written: list[int] = []
    for hunk in reversed(change.hunks):
        first = _place(lines, hunk)
        if first is None:
            return None
        old, new = iter(hunk.old), iter(lines[first : first + len(hunk.new)])
        part: _Lines = []
        for mark in hunk.marks:
            if mark == ord("-"):
                part.append((next(old), None))
                continue
            line = next(new)
            if mark == ord("+"):
                written += [line[1]] if line[1] is not None else []
            else:
                next(old)
                part.append(line)
        lines = [*lines[:first], *part, *lines[first + len(hunk.new) :]]
    return lines, written


def _place(lines: _Lines, hunk: Hunk) -> int | None:
    """The line of the hunk's new lines, nearest to where it says: a patch that is left out shifts the others."""
    wanted = hunk.new_start - 1 if hunk.new else hunk.new_start
    texts = [text for text, _ in lines]
    places = [at for at in range(len(texts) - len(hunk.new) + 1) if texts[at : at + len(hunk.new)] == hunk.new]
    return min(places, key=lambda at: abs(at - wanted), default=None)


def owners_by_git(work: WorkTree, base: str, tip: str, path: bytes) -> list[str]:
    """The commit that each line of a file has from, by git's own blame; `base` for upstream's. Raises GitFailed."""
    name = path.decode("utf-8", "surrogateescape")
    out = work.git("blame", "--porcelain", f"{base}..{tip}", "--", name)
    return [commit.decode() for commit, _ in sorted(_BLAMED.findall(out), key=lambda row: int(row[1]))]


def line_before(old: bytes, new: bytes, line: int) -> int | None:
    """The line of `old` that is line `line` of `new` (from 1); None if it was written since."""
    if old == new:
        return line
    for tag, first, _, start, end in matching(old, new):
        if tag == "equal" and start < line <= end:
            return first + line - start
    return None


def matching(old: bytes, new: bytes) -> Sequence[tuple[str, int, int, int, int]]:
    """difflib's operations from `old` to `new`, by lines."""
    return difflib.SequenceMatcher(None, split_lines(old), split_lines(new), autojunk=False).get_opcodes()
