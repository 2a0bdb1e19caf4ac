"""What a run shows while something long goes on: on a terminal only, on standard error, so that pipes stay clean."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from typing import IO, Protocol

from patchctl.terminal.text import visible_line

_REDRAW_SECONDS = 0.1
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


class Progress(Protocol):
    """One thing at a time: `start`, any number of `advance` and `note`, `finish`. Amounts are bytes."""

    def start(self, label: str, total: int | None) -> None:
        """Begin something of `total` bytes; None when nobody knows how many."""

    def advance(self, n: int) -> None:
        """`n` more bytes have come."""

    def note(self, text: str) -> None:
        """What is being done right now, in a few words."""

    def finish(self) -> None:
        """It is over, well or not."""


class SilentProgress:
    """Shows nothing: for `--json`, for logs, and for everything that is not a terminal."""

    def start(self, label: str, total: int | None) -> None:
        pass

    def advance(self, n: int) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def finish(self) -> None:
        pass


class LineProgress:
    """One line that is drawn again and again: label, bytes, percent, rate, note. It is wiped when the work is over."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._width = shutil.get_terminal_size((100, 24)).columns - 1
        self._lock = threading.Lock()
        self._label = ""
        self._total: int | None = None
        self._note = ""
        self._done = 0
        self._began = 0.0
        self._drawn = 0.0

    def start(self, label: str, total: int | None) -> None:
        with self._lock:
            self._label, self._total, self._note, self._done = label, total, "", 0
            self._began, self._drawn = time.monotonic(), 0.0
            self._draw()

    def advance(self, n: int) -> None:
        with self._lock:
            self._done += n
            self._draw()

    def note(self, text: str) -> None:
        with self._lock:
            self._note = text
            self._draw()

    def finish(self) -> None:
        with self._lock:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def _draw(self) -> None:
        now = time.monotonic()
        if now - self._drawn < _REDRAW_SECONDS:
            return
        self._drawn = now
        self._stream.write("\r\x1b[K" + self._line(now - self._began)[: self._width])
        self._stream.flush()

    def _line(self, seconds: float) -> str:
        parts = [visible_line(self._label)]
        if self._done:
            parts.append(size_text(self._done))
            if self._total:
                parts.append(f"{min(100, 100 * self._done // self._total)} %")
            if seconds > _REDRAW_SECONDS:
                parts.append(f"{size_text(int(self._done / seconds))}/s")
        if self._note:
            parts.append(visible_line(self._note))
        return "  ".join(parts)


def progress_for(stream: IO[str] | None = None) -> Progress:
    """LineProgress when `stream` (standard error) is a terminal, else SilentProgress."""
    stream = stream if stream is not None else sys.stderr
    return LineProgress(stream) if stream.isatty() else SilentProgress()


def size_text(n: int) -> str:
    """A number of bytes as a person reads it: 512 B, 1.7 MiB."""
    size = float(n)
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            break
        size /= 1024
    return f"{n} B" if unit == "B" else f"{size:.1f} {unit}"
