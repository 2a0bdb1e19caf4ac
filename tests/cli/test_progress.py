"""A run that goes on says so on standard error, whatever it is at: git is held at a FIFO until it has."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from distribution import REPO, Made

VERBS = [
    "fetch --profile full",
    "apply --profile full",
    "verify",
    "lock --check",
    "drift greeter",
    "bundle create --profile full",
    "edit greeter",
    "verify --format github",
    "export greeter --mbox out",
]


@pytest.fixture
def held(tmp_path: Path) -> Path:
    """A folder with a `git` that waits for somebody to open a FIFO."""
    os.mkfifo(tmp_path / "fifo")
    real = shutil.which("git")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/git").write_text(f"#!/bin/sh\n: < '{tmp_path}/fifo'\nexec {real} \"$@\"\n")
    (tmp_path / "bin/git").chmod(0o755)
    return tmp_path / "bin"


def first_line(made: Made, words: str, held: Path, home: Path) -> str:
    """The first line on standard error of a run whose git never answers; it is ended then."""
    home.mkdir()
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PATCHCTL_", "XDG_"))}
    env = {**kept, "PATH": f"{held}:{kept['PATH']}", "HOME": str(home), "PYTHONPATH": str(REPO), "PIP_NO_INDEX": "1"}
    command = [sys.executable, "-m", "patchctl", f"--root={made.root}", f"--cache={home}/cache", *words.split()]
    with subprocess.Popen(
        command, cwd=home, env=env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
    ) as run:
        assert run.stderr is not None
        try:
            assert select.select([run.stderr], [], [], 120)[0], "not a word"
            return run.stderr.readline().decode()
        finally:
            os.killpg(run.pid, signal.SIGKILL)  # git's shell, too


@pytest.mark.parametrize("words", VERBS)
def test_a_run_that_goes_on_says_so(small: Made, held: Path, words: str, tmp_path: Path) -> None:
    line = first_line(small, words, held, tmp_path / "home")
    assert line.startswith("patchctl: ") and line.endswith(" s\n"), line
    assert "note" not in line and "try" not in line
