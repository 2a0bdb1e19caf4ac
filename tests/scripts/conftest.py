"""What the tests of the scripts share."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "behaviour"))

from harness import REPO
from harness import torch_python as the_torch_python
from shells import Shell


@pytest.fixture(scope="session")
def torch_python() -> Path:
    """The interpreter that has torch and ray; without PATCHCTL_TORCH_PYTHON the test is skipped."""
    return the_torch_python()


@pytest.fixture(scope="session")
def patchctl_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PATH whose patchctl is the one under test, run by the interpreter of the tests."""
    folder = tmp_path_factory.mktemp("bin")
    program = folder / "patchctl"
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{REPO}" exec "{sys.executable}" -m patchctl "$@"\n')
    program.chmod(0o755)
    return folder


@pytest.fixture
def shell(tmp_path: Path, patchctl_folder: Path) -> Iterator[Shell]:
    """Runs scripts in a clean environment without torch; what is still running afterwards is killed."""
    made = Shell(tmp_path, [patchctl_folder, Path(sys.executable).parent, *_system()])
    yield made
    made.kill_all()


@pytest.fixture(scope="module")
def ray_shell(torch_python: Path, patchctl_folder: Path) -> Iterator[Shell]:
    """The same, with ray on PATH, in a folder whose name is short enough for Ray's sockets."""
    with tempfile.TemporaryDirectory(prefix="rc", dir="/tmp", ignore_cleanup_errors=True) as folder:
        made = Shell(Path(folder), [patchctl_folder, torch_python.parent, *_system()])
        yield made
        made.kill_all()


def _system() -> list[Path]:
    return [Path(part) for part in os.defpath.split(os.pathsep) if part] + [Path("/usr/sbin"), Path("/sbin")]
