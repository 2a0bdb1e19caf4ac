"""Leaving a patch out of the middle of a stack, exactly.

When a patch is left out, later patches to the same file meet other line numbers, and their recorded preimages no longer
exist. Searching for the place would be fuzz. Instead a file is kept as a weave (Rochkind's SCCS, 1975): every line that
any patch of the stack ever wrote, in order, with the patch that wrote it and those that deleted it. The file without some
patches is then a selection of lines, and a later hunk's place in it is known, not searched for. A hunk fits when its old
lines stand side by side in that selection, and when it begins or ends with the file where its context is cut short by the
file's end; otherwise the patch builds on the one that was left out, and is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from patchctl.patch.hunks import hunk_position, split_lines
from patchctl.patch.parse import Hunk

_MINUS, _PLUS = ord("-"), ord("+")
_CONTEXT = 3


@dataclass(slots=True)
class _Line:
    text: bytes
    writer: int
    deleters: set[int] = field(default_factory=set)


class Misfit(Exception):
    """A hunk has no exact place without the patches that were left out. `number` is the hunk's index."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Weave:
    """One file through a whole stack. `left_out` holds the numbers of the patches that the selection does without."""

    BASE = -1

    def __init__(self, content: bytes, left_out: set[int]) -> None:
        self._lines = [_Line(text, self.BASE) for text in split_lines(content)]
        self._left_out = left_out

    def keeps(self, patch: int) -> bool:
        """Whether this patch is one of those that stay."""
        return patch not in self._left_out

    def content(self) -> bytes:
        """The file as it is without the patches left out."""
        return b"".join(line.text for line in self._lines if self._selected(line))

    def full(self) -> bytes:
        """The file as it is with all patches so far."""
        return b"".join(line.text for line in self._lines if not line.deleters)

    def apply(self, patch: int, hunks: list[Hunk]) -> None:
        """Work the hunks of patch number `patch` in. They must fit the full file (the caller has applied them to it).

        Raises Misfit when the patch is kept and a hunk of it has no exact place in the selection.
        """
        if self.content() == (whole := self.full()):  # what was left out has been undone, or has not come yet
            self._lines = [_Line(text, self.BASE) for text in split_lines(whole)]
        full = [i for i, line in enumerate(self._lines) if not line.deleters]
        for number, hunk in reversed(list(enumerate(hunks))):  # from the end, so that the places before stay valid
            first = hunk_position(hunk)
            old = full[first : first + len(hunk.old)]
            if self.keeps(patch) and not self._fits(hunk, full, first):
                raise Misfit(number)
            at = old[0] if old else (full[first - 1] + 1 if first else 0)
            self._work_in(patch, hunk, old, at)

    def _fits(self, hunk: Hunk, full: list[int], first: int) -> bool:
        """All old lines are selected, no other selected line stands between them, and the file ends where it should.

        A hunk with less than three lines of context means the file's start or end there. Without any before it, the
        neighbour takes its place: a line that a patch left out has deleted could stand before or behind what is added.
        """
        last = first + len(hunk.old)
        before = len(hunk.marks) - len(hunk.marks.lstrip(b" "))
        after = len(hunk.marks) - len(hunk.marks.rstrip(b" "))
        wanted = full[first - 1 if not before and first else first : last]
        low = 0 if first == 0 and before < _CONTEXT else wanted[0]
        high = len(self._lines) if last == len(full) and after < _CONTEXT else wanted[-1] + 1 if wanted else 0
        return [i for i in range(low, high) if self._selected(self._lines[i])] == wanted

    def _work_in(self, patch: int, hunk: Hunk, old: list[int], at: int) -> None:
        additions: list[tuple[int, _Line]] = []
        taken = 0
        written = 0
        for mark in hunk.marks:
            if mark == _PLUS:
                additions.append((at, _Line(hunk.new[written], patch)))
                written += 1
                continue
            if mark == _MINUS:
                self._lines[old[taken]].deleters.add(patch)
            else:
                written += 1
            at = old[taken] + 1
            taken += 1
        for place, line in reversed(additions):
            self._lines.insert(place, line)

    def _selected(self, line: _Line) -> bool:
        return line.writer not in self._left_out and line.deleters <= self._left_out
