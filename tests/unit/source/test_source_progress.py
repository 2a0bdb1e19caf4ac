"""Progress is one line on a terminal, and nothing anywhere else."""

from __future__ import annotations

import io
import time

from patchctl.terminal.progress import LineProgress, SilentProgress, progress_for, size_text


class Terminal(io.StringIO):
    """Stands for a terminal: a stream that says that it is one."""

    def isatty(self) -> bool:
        return True


def test_bytes_percent_and_rate_are_shown() -> None:
    terminal = Terminal()
    progress = progress_for(terminal)
    progress.start("verl\x1b[0m: index", 4096)
    time.sleep(0.15)
    progress.advance(1024)
    progress.finish()
    shown = terminal.getvalue()
    assert "1.0 KiB  25 %" in shown and "/s" in shown
    assert "verl\\x1b[0m" in shown
    assert shown.endswith("\r\x1b[K")


def test_a_note_is_shown_beside_the_label() -> None:
    terminal = Terminal()
    progress = LineProgress(terminal)
    progress.start("git", None)
    time.sleep(0.11)
    progress.note("receiving objects 12 %")
    assert "git  receiving objects 12 %" in terminal.getvalue()


def test_nothing_is_shown_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    progress = progress_for(stream)
    assert isinstance(progress, SilentProgress)
    progress.start("x", 10)
    progress.advance(10)
    progress.note("y")
    progress.finish()
    assert stream.getvalue() == ""


def test_sizes_read_well() -> None:
    assert [size_text(n) for n in (0, 512, 1024, 1757161, 5 << 40)] == ["0 B", "512 B", "1.0 KiB", "1.7 MiB", "5.0 TiB"]
