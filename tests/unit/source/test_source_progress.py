"""Progress is one line on a terminal, and a line now and then anywhere else."""

from __future__ import annotations

import io
import time
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import pytest

from patchctl.terminal.progress import (
    OFF,
    LineProgress,
    PlainProgress,
    Progress,
    progress_for,
    progress_of_run,
    size_text,
)


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


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def lines_of(seconds: Iterable[float], notes: Mapping[float, str] = MappingProxyType({})) -> list[str]:
    """What a log has of a run whose watch looks at these seconds; notes come right before."""
    stream, clock = io.StringIO(), Clock()
    progress = PlainProgress(stream, clock)
    progress.of("drift")
    for second in seconds:
        clock.now = 100.0 + second
        if second in notes:
            progress.note(notes[second])
        progress.alive()
    return stream.getvalue().splitlines()


def test_a_log_gets_a_line_after_two_seconds_and_then_less_and_less_often() -> None:
    assert lines_of([0.5, 1.0, 1.9]) == []
    assert lines_of([1.9, 2.0]) == ["patchctl: drift, 2 s"]
    said = [int(line.split()[-2]) for line in lines_of(range(1, 301))]
    assert said == [2, 12, 32, 72, 132, 192, 252]


def test_a_log_gets_what_is_new_five_seconds_after_the_last_line() -> None:
    notes = {3.0: "v1", 5.0: "v2", 20.0: "v3"}
    said = lines_of(range(1, 26), notes)
    assert said == [
        "patchctl: drift, 2 s",
        "patchctl: drift  v2, 7 s",
        "patchctl: drift  v2, 17 s",
        "patchctl: drift  v3, 22 s",
    ]


def test_bytes_are_in_a_log_too() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = PlainProgress(stream, clock)
    progress.start("verl: index", 4096)
    progress.advance(1024)
    clock.now += 2
    progress.alive()
    assert stream.getvalue() == "patchctl: verl: index  1.0 KiB  25 %  512 B/s  6 s left, 2 s\n"


def test_a_terminal_shows_that_it_goes_on_and_is_left_clean() -> None:
    terminal, clock = Terminal(), Clock()
    progress = LineProgress(terminal, clock)
    progress.of("verify")
    progress.alive()
    assert terminal.getvalue() == ""
    clock.now += 2
    progress.alive()
    assert terminal.getvalue() == "\r\x1b[Kverify  2 s"
    progress.rest()
    assert terminal.getvalue().endswith("2 s\r\x1b[K")
    clock.now += 60
    progress.alive()
    assert terminal.getvalue().endswith("2 s\r\x1b[K")  # somebody else has it
    progress.note("verl")
    assert terminal.getvalue().endswith("\r\x1b[Kverify  verl")


def test_a_stream_that_nobody_reads_stops_nothing() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = PlainProgress(stream, clock)
    stream.close()
    clock.now += 2
    progress.alive()


def test_json_and_the_variable_keep_it_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    with progress_of_run(silent=True) as shown:
        assert isinstance(shown, Progress)
    monkeypatch.setenv(OFF, "1")
    with progress_of_run(silent=False) as shown:
        assert isinstance(shown, Progress)


def test_sizes_read_well() -> None:
    assert [size_text(n) for n in (0, 512, 1024, 1757161, 5 << 40)] == ["0 B", "512 B", "1.0 KiB", "1.7 MiB", "5.0 TiB"]
