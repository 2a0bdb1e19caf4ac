"""Runs long-running programs and ends them, with their children, when patchctl is interrupted."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from typing import Any

# Time to clean up: pytest runs its fixtures' teardown.
_SECONDS = 5.0


def run(command: Sequence[str], *, timeout: float | None = None, **options: Any) -> subprocess.CompletedProcess[Any]:
    """Like subprocess.run, in a session of its own that is ended on interruption or timeout.

    Raises what Popen raises, and TimeoutExpired.
    """
    with subprocess.Popen(command, start_new_session=True, **options) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            _end(process)
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _end(process: subprocess.Popen[Any]) -> None:
    _signal(process, signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_SECONDS)
    _signal(process, signal.SIGKILL)


def _signal(process: subprocess.Popen[Any], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
