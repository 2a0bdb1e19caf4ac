"""Where upstream has moved a file: one that is new in the release, with the same name or in the same folder, and more than half
the same lines, which is where git draws the line."""

from __future__ import annotations

from collections import Counter

from patchctl.maintain.releases import RevisionTree
from patchctl.patch.apply import split_lines

_ALIKE = 0.5
_MOST_READ = 64


def renamed(path: bytes, content: bytes, old: RevisionTree, new: RevisionTree) -> bytes | None:
    """The path in `new` of the file that was at `path` in `old`; None where there is none like it. Files whose content the
    source of `new` does not hold are passed over."""
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
    """The share of the larger file's bytes that stand on lines of both."""
    shared = Counter(split_lines(one)) & Counter(split_lines(other))
    return sum(len(line) * n for line, n in shared.items()) / max(len(one), len(other), 1)
