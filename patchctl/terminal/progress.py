"""Progress of long operations on standard error: a redrawn line on a terminal, occasional lines elsewhere.

A quick run shows nothing.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from patchctl.language import message, translated
from patchctl.terminal.text import cut, visible_line, width_of

SILENCE = 2.0
"""The most seconds that a run may be silent."""
OFF = "PATCHCTL_NO_PROGRESS"
_LOOK_SECONDS = 0.25
_REDRAW_SECONDS = 0.1
_NEWS_SECONDS = 5.0
_REPEAT_SECONDS = 10.0
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


class Progress:
    """Progress of one operation at a time: `start`, any number of `advance` and `note`, `finish`. Amounts are bytes. Shows
    nothing itself, which is for `--json` and where another process reports."""

    def of(self, whole: str) -> None:
        """Name the whole run (its verb), shown while no operation is named."""

    def start(self, label: str, total: int | None) -> None:
        """Begin an operation of `total` bytes; None if unknown."""

    def advance(self, n: int) -> None:
        """Add `n` received bytes."""

    def note(self, text: str) -> None:
        """Describe the current step in a few words."""

    def finish(self) -> None:
        """End the operation, successful or not."""

    def rest(self) -> None:
        """Stop showing progress until there is news, since someone else writes to the terminal."""


class _Shown(Progress):
    """The current operation and its state; subclasses show it on news and when `alive` is called."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._clock = clock
        self._lock = threading.RLock()
        self._run = clock()
        self._whole = ""
        self._said = self._began = self._run
        self._quiet = False
        self._set("", None)

    def _set(self, label: str, total: int | None) -> None:
        self._label, self._total, self._note, self._done = label, total, "", 0
        self._began = self._clock()

    def of(self, whole: str) -> None:
        self._whole = whole

    def start(self, label: str, total: int | None) -> None:
        self._change(lambda: self._set(label, total))

    def advance(self, n: int) -> None:
        def more() -> None:
            self._done += n

        self._change(more)

    def note(self, text: str) -> None:
        def noted() -> None:
            self._note = text

        self._change(noted)

    def _change(self, change: Callable[[], None]) -> None:
        with self._lock:
            change()
            self._quiet = False
            self._show()

    def finish(self) -> None:
        with self._lock:
            self._set("", None)
            self._wipe()

    def rest(self) -> None:
        """Leave the stream to others until there is news."""
        with self._lock:
            self._quiet = True
            self._wipe()

    def alive(self) -> None:
        """Repeat the current state if nothing was shown for a while."""
        with self._lock:
            said = self._label or self._whole  # nothing yet while the verb is still read
            if said and not self._quiet and self._clock() - self._said >= SILENCE:
                self._show_again()

    def _wipe(self) -> None:
        """Remove what should not stay on the terminal."""

    def _show(self) -> None:
        """Show news."""

    def _show_again(self) -> None:
        """Show that the work goes on without news."""

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):  # the reader is gone; the work goes on
            self._stream.write(text)
            self._stream.flush()
        self._said = self._clock()

    def _line(self) -> str:
        parts = [visible_line(translated(self._label or self._whole))]
        seconds = self._clock() - self._began
        if self._done:
            parts.append(size_text(self._done))
            if self._total:
                parts.append(f"{min(100, 100 * self._done // self._total)} %")
            if seconds > _REDRAW_SECONDS:
                parts.append(f"{size_text(int(self._done / seconds))}/s")
                if self._total and self._done < self._total:
                    left = round((self._total - self._done) * seconds / self._done)
                    parts.append(translated(message("{seconds} s left", seconds=left)))
        if self._note:
            parts.append(visible_line(translated(self._note)))
        return "  ".join(p for p in parts if p)


class LineProgress(_Shown):
    """A redrawn line: label, bytes, percent, rate, time left, note. Wiped at the end."""

    _drawn = False

    def _show(self) -> None:
        if not self._drawn or self._clock() - self._said >= _REDRAW_SECONDS:
            self._draw(self._line())

    def _show_again(self) -> None:
        self._draw(f"{self._line()}  {self._clock() - self._run:.0f} s")

    def _draw(self, line: str) -> None:
        self._drawn = True
        self._write("\r\x1b[K" + cut(line, (width_of(self._stream) or 100) - 1))

    def _wipe(self) -> None:
        if self._drawn:
            self._write("\r\x1b[K")
        self._drawn = False


class PlainProgress(_Shown):
    """For pipes and logs: a line after two seconds, then every five seconds with news, ever less often without."""

    _last, _wait = "", 0.0

    def _show_again(self) -> None:
        about = f"{self._label or self._whole}  {self._note}"
        since = self._clock() - self._said
        if self._last and since < (self._wait if about == self._last else _NEWS_SECONDS):
            return
        self._wait = min(60.0, 2 * self._wait) if about == self._last else _REPEAT_SECONDS
        self._last = about
        self._write(f"patchctl: {self._line()}, {self._clock() - self._run:.0f} s\n")


@contextmanager
def progress_of_run(*, silent: bool) -> Iterator[Progress]:
    """Yield the progress of a run, which shows something at least every `SILENCE` seconds."""
    if silent or os.environ.get(OFF):
        yield Progress()
        return
    shown, over = progress_for(), threading.Event()

    def watch() -> None:
        while not over.wait(_LOOK_SECONDS):
            shown.alive()

    with suppress(RuntimeError):  # no thread available: only news is shown
        threading.Thread(target=watch, name="progress", daemon=True).start()
    try:
        yield shown
    finally:
        over.set()
        shown.rest()


def progress_for(stream: TextIO | None = None) -> LineProgress | PlainProgress:
    """Return LineProgress if `stream` (standard error) is a terminal, else PlainProgress."""
    stream = stream if stream is not None else sys.stderr
    return LineProgress(stream) if stream.isatty() else PlainProgress(stream)


def size_text(n: int) -> str:
    """Format a number of bytes: 512 B, 1.7 MiB."""
    size = float(n)
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            break
        size /= 1024
    return f"{n} B" if unit == "B" else f"{size:.1f} {unit}"
