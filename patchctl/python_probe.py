"""Asks another Python interpreter: runs a short program in it and reads the JSON that it prints."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from patchctl.language import message
from patchctl.os_errors import os_reason
from patchctl.process_group import ask
from patchctl.terminal.text import one_line


class PythonProbeFailed(Exception):
    """Why an interpreter did not answer, without the program that it was given."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


def ask_python(python: str, program: str, *args: str, seconds: float, cwd: str | None = "/") -> Any:
    """Return the JSON value on the last line that `program` prints. Raises PythonProbeFailed."""
    try:
        done = ask([python, "-c", program, *args], seconds, cwd=cwd)
    except subprocess.TimeoutExpired as error:
        raise PythonProbeFailed(message("no answer after {seconds} s", seconds=f"{seconds:.0f}")) from error
    except OSError as error:
        raise PythonProbeFailed(os_reason(error)) from error
    if done.returncode:
        said = one_line(done.stderr.strip()[-200:])
        raise PythonProbeFailed(said or message("status {status}", status=done.returncode))
    try:
        return json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError) as error:
        raise PythonProbeFailed(
            message("its answer is not JSON: {said}", said=one_line(done.stdout, 100) or "-")
        ) from error
