"""scripts/test_pythons.py: which Pythons it finds, and what it says of one that is not there."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy("makes environments")

SCRIPT = Path(__file__).parents[3] / "scripts" / "test_pythons.py"
THIS = ".".join(platform.python_version_tuple()[:2])


def run(home: Path, *path: str, only: str) -> subprocess.CompletedProcess[str]:
    """With no test chosen: where the Python is found, its environment is made, and pytest says so with 5."""
    places = {"PATH": os.pathsep.join(path), "PYENV_ROOT": str(home), "UV_PYTHON_INSTALL_DIR": str(home)}
    words = [
        sys.executable,
        str(SCRIPT),
        "--only",
        only,
        "--out",
        str(home),
        "--",
        "-k",
        "no_such_test",
        "tests/unit/test_scratch.py",
    ]
    return subprocess.run(words, env={**os.environ, **places}, capture_output=True, text=True, check=False)


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """As pyenv's shims are for versions that are not chosen."""
    for version in (THIS, "3.14"):
        shim = tmp_path / "shims" / f"python{version}"
        shim.parent.mkdir(exist_ok=True)
        shim.write_text("#!/bin/sh\necho 'command not found' >&2\nexit 127\n")
        shim.chmod(0o755)
    return tmp_path / "shims"


@pytest.mark.skipif(THIS == "3.14", reason="this is 3.14")
def test_one_that_is_not_there_is_named(broken: Path, tmp_path: Path) -> None:
    done = run(tmp_path, str(broken), only="3.14")
    assert (done.returncode, done.stdout) == (3, "Python 3.14  is not on this machine\n"), done.stderr


def test_one_that_runs_is_taken_and_what_ends_red_is_red(broken: Path, tmp_path: Path) -> None:
    done = run(tmp_path, str(broken), str(Path(sys.executable).parent), os.environ["PATH"], only=THIS)
    if "cannot be made" in done.stdout:
        pytest.skip("no package index")
    assert f"== Python {platform.python_version()}, {Path(sys.executable).parent}/python{THIS}\n" in done.stdout
    assert (done.returncode, done.stdout.splitlines()[-1]) == (
        1,
        f"Python {THIS}  {platform.python_version()}: FAILED, pytest ended with 5",
    )
