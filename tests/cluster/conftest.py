"""What the tests of `patchctl cluster` share. Those that start Ray need an interpreter that has it: PATCHCTL_RAY_PYTHON, else
PATCHCTL_TORCH_PYTHON, whose environment (scripts/torch_env.py) has ray too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(Path(__file__).parent), str(TESTS), str(TESTS / "cli")]

_HAS_RAY = (
    "import importlib.util, sys; sys.exit(importlib.util.find_spec('ray') is None and 'it is not installed' or 0)"
)


@pytest.fixture(scope="session")
def ray_python() -> str:
    """The interpreter of raylets and drivers."""
    for name in ("PATCHCTL_RAY_PYTHON", "PATCHCTL_TORCH_PYTHON"):
        python = os.environ.get(name)
        if python:
            has = subprocess.run([python, "-c", _HAS_RAY], capture_output=True, text=True, timeout=120, check=False)
            if has.returncode == 0:
                return python
            pytest.skip(f"{name} names {python}, which has no ray: {has.stderr.strip().splitlines()[-1:]}")
    pytest.skip("no Python with ray: set PATCHCTL_RAY_PYTHON, or PATCHCTL_TORCH_PYTHON as make test does")
