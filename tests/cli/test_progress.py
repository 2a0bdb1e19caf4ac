"""A run that goes on says so on standard error, whatever it is at: git is held at a FIFO until it has."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
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


def test_a_run_that_goes_on_says_so(small: Made, held: Path, tmp_path: Path) -> None:
    homes = [tmp_path / f"home{n}" for n in range(len(VERBS))]
    with ThreadPoolExecutor(len(VERBS)) as pool:  # each is silent for two seconds
        lines = list(pool.map(lambda words, home: first_line(small, words, held, home), VERBS, homes))
    for line, words in zip(lines, VERBS, strict=True):
        assert line.startswith("patchctl: ") and line.endswith(" s\n"), (words, line)
        assert "note" not in line and "try" not in line, (words, line)
