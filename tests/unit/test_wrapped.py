"""Lines on a terminal: broken to its width with a hanging indent, and nothing of them lost."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from functools import cache

import pytest
from distribution import REPO
from hypothesis import given
from hypothesis import strategies as st
from pins import oldest

from patchctl.terminal.text import _COMMAND, COLOR, columns, wrapped

WIDTHS = (60, 80, 120, 200)
ENVIRONMENT = os.environ | {"PYTHONPATH": str(REPO), "LANG": "C.UTF-8", "NO_COLOR": "1"}


def test_what_follows_stands_below_its_column() -> None:
    assert wrapped("demo  on 1  a model of two layers with random weights", 30) == [
        "demo  on 1  a model of two",
        "            layers with random",
        "            weights",
    ]
    assert wrapped("    runs on torch 2.10.0, cann 9.1.0", 26) == ["    runs on torch 2.10.0,", "      cann 9.1.0"]


@pytest.mark.parametrize(
    "line",
    [
        "        try: patchctl apply --profile qwen3-235b --workspace /srv/workspace",
        "  try: PATCHCTL_ROOT=/srv scripts/train.sh qwen3-235b grpo --nodes 16 --resume",
        "export RAY_ADDRESS=10.0.0.1:6379  # of the first node, the same on every one",
        "python3 -m verl.trainer.main_ppo --config-name=ppo_megatron_trainer trainer.nnodes=8 \\",
        "建议：patchctl apply --profile qwen3-235b --workspace /srv/workspace --stash",
    ],
)
def test_a_command_stays_whole(line: str) -> None:
    assert wrapped(line, 40) == [line]


def test_chinese_is_broken_between_characters_but_not_before_a_stop() -> None:
    assert wrapped("    未包含 某特性：源码中缺少它需要的文件，重新应用。", 30) == [
        "    未包含 某特性：源码中缺少",
        "      它需要的文件，重新应用。",
    ]


def test_no_line_of_chinese_begins_with_a_stop_or_ends_with_a_bracket() -> None:
    assert wrapped("  driver/version.info：不存在（docs/images.md，下文）", 22) == [
        "  driver/version.info：",
        "    不存在",
        "    （docs/images.md，",
        "    下文）",
    ]


def test_colours_take_no_room() -> None:
    line = f"\x1b[32m{'word ' * 7}\x1b[0mend"
    assert [columns(COLOR.sub("", one)) for one in wrapped(line, 20)] == [19, 20]


@given(st.text(st.sampled_from("ab  `，。：源码-=\\")), st.sampled_from(WIDTHS), st.integers(1, 40))
def test_no_character_is_lost(text: str, width: int, times: int) -> None:
    line = " ".join([text] * times)
    assert "".join(wrapped(line, width)).replace(" ", "") == line.replace(" ", "")


@cache
def in_a_pipe(verb: str) -> tuple[list[str], str]:
    command = [sys.executable, "-m", "patchctl", *verb.split()]
    done = subprocess.run(command, cwd=REPO, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    return command, done.stdout


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("verb", ["list -v", "recipe list", "recipe show -v qwen3-235b/grpo"])
def test_a_terminal_and_a_pipe_are_told_the_same(verb: str, width: int) -> None:
    """A real terminal of this width. What is longer is one word, or a command."""
    command, piped = in_a_pipe(verb)
    lines = on_a_terminal(command, width)
    assert "".join("".join(lines).split()) == "".join(piped.split())
    assert [one for one in lines if columns(one) > width and " " in one.strip() and not _COMMAND.search(one)] == []


# Two of many recipes: the one with most features, and one with the longest limit.
@pytest.mark.parametrize(
    "verb", ["list", "verify --static", f"recipe show deepseek-r1/grpo@{oldest()}", "recipe show qwen3-235b/grpo"]
)
def test_a_summary_fits_a_screen(verb: str) -> None:
    """At 80 columns; -v begins with the same and adds to it."""
    command, piped = in_a_pipe(verb)
    assert len(on_a_terminal(command, 80)) <= 15
    if verb != "verify --static":  # which has nothing but what was not checked to add
        *summary, more = piped.splitlines()
        assert more.startswith("-v adds ")
        assert in_a_pipe(f"{verb} -v")[1].splitlines()[: len(summary)] == summary


def on_a_terminal(command: list[str], width: int) -> list[str]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    with subprocess.Popen(command, cwd=REPO, env=ENVIRONMENT, stdout=theirs, stderr=subprocess.DEVNULL):
        os.close(theirs)
        shown = b"".join(iter(lambda: _read(ours), b""))
    os.close(ours)
    return shown.decode().replace("\r\n", "\n").splitlines()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # the other end is closed
        return b""
