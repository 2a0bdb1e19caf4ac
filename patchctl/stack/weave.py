"""Leaves a patch out of the middle of a stack, exactly.

Without a patch, later patches to the same file meet other line numbers, and their recorded preimages no longer exist.
Searching for the place would be fuzz. Instead a file is kept as a weave (Rochkind's SCCS, 1975): every line that any
patch of the stack ever wrote, in order, with the patch that wrote it and those that deleted it. The file without some
patches is then a selection of lines, and a later hunk's place in it is known. A hunk fits if its old lines are
adjacent in that selection, and if it starts or ends with the file where its context is short. Otherwise the patch
builds on the one left out, and is refused.
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
    """A hunk has no exact place without the patches left out. `number` is the hunk's index."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Weave:
    """One file through a whole stack. `left_out` are the numbers of the patches to leave out."""

    BASE = -1

    def __init__(self, content: bytes, left_out: set[int]) -> None:
        self._lines = [_Line(text, self.BASE) for text in split_lines(content)]
        self._left_out = left_out

    def keeps(self, patch: int) -> bool:
        """Whether this patch is kept."""
        return patch not in self._left_out

    def content(self) -> bytes:
        """Return the file without the patches left out."""
        return b"".join(line.text for line in self._lines if self._selected(line))

    def full(self) -> bytes:
        """Return the file with all patches so far."""
        return b"".join(line.text for line in self._lines if not line.deleters)

    def apply(self, patch: int, hunks: list[Hunk]) -> None:
        """Apply the hunks of patch number `patch`, which must fit the full file (the caller has checked).

        Raises Misfit if the patch is kept and a hunk has no exact place in the selection.
        """
        if self.content() == (whole := self.full()):  # what was left out is undone again, or not there yet
            self._lines = [_Line(text, self.BASE) for text in split_lines(whole)]
        full = [i for i, line in enumerate(self._lines) if not line.deleters]
        for number, hunk in reversed(list(enumerate(hunks))):  # backwards, so that earlier positions stay valid
            first = hunk_position(hunk)
            old = full[first : first + len(hunk.old)]
            if self.keeps(patch) and not self._fits(hunk, full, first):
                raise Misfit(number)
            at = old[0] if old else (full[first - 1] + 1 if first else 0)
            self._work_in(patch, hunk, old, at)

    def _fits(self, hunk: Hunk, full: list[int], first: int) -> bool:
        """Whether all old lines are selected and adjacent, with the file's start or end where the hunk implies it.

        Less than three lines of context mean the file's start or end. Without leading context the neighbouring line
        takes its place: a line deleted by a left-out patch could be before or after the additions.
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
