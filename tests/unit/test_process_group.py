"""Programs are found on PATH, and end with the run that started them, whenever it is told to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from distribution import REPO

from patchctl import process_group

# A signal at the worst moment: the program runs, and Popen has not returned yet.
_AT_THE_START = """
import os, signal, subprocess, sys, time
from pathlib import Path
from patchctl import process_group
from patchctl.cli import _end
from patchctl.errors import Ended

class Slow(subprocess.Popen):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        while not begun.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), int(sys.argv[2]))
        time.sleep(0.01)

begun = Path(sys.argv[1])
subprocess.Popen = Slow
signal.signal(signal.SIGTERM, _end)
try:
    process_group.run(["sh", "-c", f"sleep 300 & echo $! > {begun}.part; mv {begun}.part {begun}; wait"])
except (Ended, KeyboardInterrupt) as ended:
    print(type(ended).__name__)
"""


def test_a_program_in_the_current_folder_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor one of a relative folder on PATH: whoever wrote the folder that we stand in would choose what runs."""
    for folder in ("bin", "."):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "tool").write_text("#!/bin/sh\n")
        (tmp_path / folder / "tool").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    for path in (".", "", "bin", f"bin:{tmp_path / 'no'}"):
        assert process_group.find_program("tool", {"PATH": path}) is None
    assert process_group.find_program("tool", {"PATH": f".:{tmp_path / 'bin'}"}) == str(tmp_path / "bin/tool")


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGTERM, "Ended"), (signal.SIGINT, "KeyboardInterrupt")])
def test_a_signal_while_a_program_starts_ends_it_too(number: int, raised: str, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    line = [sys.executable, "-c", _AT_THE_START, str(begun), str(int(number))]
    done = subprocess.run(line, env=os.environ | {"PYTHONPATH": str(REPO)}, stdout=-1, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (0, f"{raised}\n")
    deadline = time.monotonic() + 5
    while _runs(int(begun.read_text())):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False
