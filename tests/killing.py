"""Runs of patchctl that end themselves with SIGKILL, at any change of a file or start of a program."""

from __future__ import annotations

import os
import subprocess
import sys

from distribution import REPO, Made

KILLER = """
import os, signal, sys
at, seen = int(sys.argv[1]), 0
def hook(event, args):
    global seen
    if event == "open":
        counts = isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR) and "patchctl-git-" not in str(args[0])
    else:
        counts = event in ("os.rename", "os.remove", "os.symlink", "os.mkdir", "subprocess.Popen", "shutil.rmtree")
    if counts:
        seen += 1
        if seen == at:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
from patchctl.__main__ import main
sys.argv = ["patchctl", *sys.argv[2:]]
try:
    main()
finally:
    sys.stderr.write(f"events {seen}\\n")
"""


def killed(made: Made, at: int, *args: str) -> tuple[int, int]:
    """A run that is killed at its `at`th change; (exit code, how many it had), with 0 of one that goes to its end."""
    home = made.cache.parent / "home"
    home.mkdir(exist_ok=True)
    env = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("PATCHCTL_", "PIP_"))},
        "HOME": str(home),
        "PYTHONPATH": str(REPO),
        "PIP_NO_INDEX": "1",
        "PATCHCTL_NO_PROGRESS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    env |= {"PIP_FIND_LINKS": str(made.index)} if made.index.is_dir() else {}
    line = [sys.executable, "-c", KILLER, str(at), f"--root={made.root}", f"--cache={made.cache}", *args]
    done = subprocess.run(line, cwd=home, env=env, capture_output=True, text=True, check=False)
    events = done.stderr.rpartition("events ")[2].strip()
    return done.returncode, int(events) if events.isdigit() else 0


def points(total: int, about: int) -> list[int]:
    """Where to kill a run of `total` changes: at `about` so many of them, the first and the last among them."""
    return [*range(1, total, max(1, total // about)), total]
