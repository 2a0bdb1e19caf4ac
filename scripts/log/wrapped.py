"""A line of metrics that came in pieces: a terminal of some width wrapped it and what was on it was copied, or a container's runtime
cut it. Read by itself, the first piece ends in the middle of a value: 50 where 501737 was printed."""

from __future__ import annotations

import re

from patchctl.blame.blame import plain, without_prefix

# Wider than any terminal is a line that nothing has wrapped; narrower, one that is over.
_NARROWEST, _WIDEST = 40, 1000
# How container runtimes mark a line that goes on; they cut at 16 KiB.
_GOES_ON = re.compile(r"\bstd(?:out|err) P ")
_MOST_PIECES = 4096


class Pieces:
    """The first piece of a line, and those below it that `take` finds to belong to it."""

    def __init__(self, number: int, first: bytes, item: re.Pattern[str], by_data: re.Pattern[str]) -> None:
        """`item` is a metric with its value; `by_data` one whose name holds that of a data set, and so anything."""
        self.number, self.count = number, 1
        self._item, self._by_data = item, by_data
        self._last = plain(_text(first))
        self.text = self._last
        self._width = len(self._last)
        self._over = False

    def take(self, line: bytes) -> bool:
        """Whether the line goes on where the last one stopped; it is added then."""
        below = plain(_text(line))
        joined = self._of_a_container(below) or (None if self._over else self._of_a_terminal(below))
        if joined is None or self.count == _MOST_PIECES:
            return False
        self.text, self._last, self.count = joined, below, self.count + 1
        return True

    def _of_a_container(self, below: str) -> str | None:
        return self.text + without_prefix(below)[1] if _GOES_ON.search(self._last) else None

    def _of_a_terminal(self, below: str) -> str | None:
        """What both are together; None where the line above was not full, or the two make no metrics."""
        full = max(self._width, len(below)) if self.count == 1 and len(below) == self._width + 1 else self._width
        if not (_NARROWEST <= full <= _WIDEST and below.strip() and full - 1 <= len(self._last) and len(below) <= full):
            return None
        # A blank at the end of a line is lost where it is copied.
        parted = self.text.endswith(" -") and not below.startswith(" ")
        parted = parted or (below.startswith("- ") and not self.text.endswith(" "))
        joined = self.text + " " * parted + below
        *whole, last = joined[self.text.rfind(" - ") + 3 :].split(" - ")
        over = len(below) < full - 1
        if not all(map(self._is_item, whole)) or not (self._is_item(last) if over else " " not in last.strip(" -")):
            return None
        self._width, self._over = full, over
        return joined

    def _is_item(self, piece: str) -> bool:
        return (self._by_data if piece.startswith("val-") else self._item).fullmatch(piece.strip()) is not None


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace").rstrip("\r\n")
