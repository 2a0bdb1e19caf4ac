"""tests/forks.py: programs that begin alike share their beginning, and nothing else."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forks import Forks, beginning

# Which process imported it, and what it does to whoever imports it.
SHARED = "import os, sys, threading, time\nPID = os.getpid()\n"
PROGRAM = """
'''A program.'''
from __future__ import annotations
import json, os, sys
os.environ["SET"] = "by the program"
import shared
shared.prepare(sys.argv[1])
import csv
MODE, *REST = sys.argv[1:]
def annotated(one: Missing): pass
print(json.dumps([shared.PID, shared.MODE, REST, os.getcwd(), [os.environ.get(n) for n in ("SET", "RANK", "GIVEN")], __name__]))
if REST == ["fails"]: sys.exit(3)
"""


@pytest.fixture
def forks(tmp_path: Path) -> Iterator[Forks]:
    (tmp_path / "program.py").write_text(PROGRAM)
    forks = Forks(sys.executable, environment(tmp_path), ())
    yield forks
    forks.close()


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder), "GIVEN": "by the run", **more}


def run(forks: Forks, folder: Path, *arguments: str, **more: str) -> tuple[int, Any]:
    out = folder / "out"
    with out.open("wb") as stdout, (folder / "err").open("wb") as stderr:
        process = forks.start(
            [str(folder / "program.py"), *arguments], environment(folder, **more), folder, stdout, stderr
        )
    return process.wait(60), json.loads(out.read_text())


def ahead(forks: Forks, folder: Path, shared: str) -> Forks | None:
    (folder / "shared.py").write_text(f"{SHARED}{shared}\ndef prepare(mode): global MODE; MODE = mode\n")
    return forks.ahead([str(folder / "program.py"), "mode"], environment(folder, RANK="7"), folder)


def test_a_program_begins_with_what_is_the_same_in_each_run() -> None:
    first, rest, read = beginning(PROGRAM)
    assert (len(first), len(rest), read) == (7, 4, [1])


@pytest.mark.parametrize("other", ["MODE = sys.argv[1]", "x.prepare(len(sys.argv))", "x.prepare(sys.argv[1:])", "f()"])
def test_a_beginning_ends_at_what_is_a_runs(other: str) -> None:
    first, rest, read = beginning(f"import sys\n{other}\nimport late\n")
    assert (len(first), len(rest), read) == (1, 2, [])


def test_runs_share_their_beginning_and_nothing_else(forks: Forks, tmp_path: Path) -> None:
    begun = ahead(forks, tmp_path, "")
    assert begun
    for folder, words in (("a", ["mode"]), ("b", ["mode", "fails"])):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "program.py").write_text(PROGRAM)
        code, (pid, mode, rest, cwd, settings, name) = run(begun, tmp_path / folder, *words, RANK=folder)
        assert code == (3 if rest else 0)
        assert (mode, rest, cwd) == ("mode", words[1:], str(tmp_path / folder))
        assert settings == ["by the program", folder, "by the run"]
        assert (name, pid != os.getpid()) == ("__main__", True)
        (tmp_path / "pids").open("a").write(f"{pid}\n")
    assert len({*(tmp_path / "pids").read_text().split()}) == 1
    begun.close()


@pytest.mark.parametrize(
    "shared",
    [
        "os.environ.get('RANK')",
        "os.environ['GIVEN']; os.getenv('MASTER_PORT')",
        "threading.Thread(target=time.sleep, args=[9], daemon=True).start()",
        "sys.exit(1)",
        "1 / 0",
    ],
)
def test_what_each_run_begins_by_itself(forks: Forks, tmp_path: Path, shared: str) -> None:
    assert ahead(forks, tmp_path, shared) is None
