"""Runs a script under the interpreter that has torch: benchmarks themselves run under the tool's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VARIABLE = "PATCHCTL_TORCH_PYTHON"


def torch_python() -> str:
    """The interpreter; ends the benchmark with what is missing where none is named."""
    python = os.environ.get(VARIABLE)
    if not python:
        sys.exit(f"{VARIABLE} is not set: it names a Python 3.11 that has a CPU torch")
    return python


def run_in_torch(command: list[object], environment: Mapping[str, str], folder: Path | None = None) -> Any:
    """What the script printed last, which is JSON. Raises CalledProcessError when it fails."""
    words = [torch_python(), *map(str, command)]
    done = subprocess.run(words, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])
