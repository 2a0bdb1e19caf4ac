"""What a run holds in memory does not grow with its sources: the whole of a tree is hashed and written, and never kept."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from distribution import CLOCK, REPO, Made, make_distribution

pytestmark = pytest.mark.heavy("a source of 100 MB")

LIMIT = 100  # MiB, of a run with 30 for Python and what is imported
MEASURED = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    drawn = random.Random(0)
    files = {f"clock/data/{n}.txt": drawn.randbytes(50_000).hex() for n in range(1000)}
    clock = replace(CLOCK, files={**CLOCK.files, **files}, patches=())
    made = make_distribution(tmp_path_factory.mktemp("large"), (clock,), lock=True)
    made.good("apply", "--profile", "full", "--workspace", str(made.root.parent / "first"))
    return made


def peak(made: Made, *args: str) -> int:
    line = [sys.executable, "-m", "patchctl", f"--root={made.root}", f"--cache={made.cache}", *args]
    environment = {
        "HOME": str(made.root.parent),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(REPO),
        "PIP_NO_INDEX": "1",
    }
    done = subprocess.run([sys.executable, "-c", MEASURED, *line], env=environment, capture_output=True, text=True)
    code, mebibytes = map(int, done.stdout.split())
    assert code == 0, done.stderr
    return mebibytes


@pytest.mark.parametrize(
    "words",
    [
        "apply --profile full --workspace NEW",
        "verify --workspace FIRST",
        "status --workspace FIRST",
        "verify --source git",
    ],
)
def test_a_run_has_no_whole_tree_in_memory(made: Made, tmp_path: Path, words: str) -> None:
    places = {"NEW": str(tmp_path / "new"), "FIRST": str(made.root.parent / "first")}
    assert peak(made, *(places.get(word, word) for word in words.split())) <= LIMIT
