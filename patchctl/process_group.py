"""Runs long-running programs and ends them, with their children, when patchctl is interrupted."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, TypeVar

# Time to clean up: pytest runs its fixtures' teardown.
_SECONDS = 5.0
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_running: set[subprocess.Popen[Any]] = set()


def each(work: Callable[[_Item], _Result], items: Sequence[_Item], jobs: int) -> Iterator[tuple[_Item, _Result]]:
    """Yield each item with the result of `work`, as they end, `jobs` at a time.

    On an error or interruption the programs that `run` has started are ended, and no other is started.
    """
    with ThreadPoolExecutor(max_workers=max(1, jobs)) as pool:
        results = {pool.submit(work, item): item for item in items}
        try:
            for done in as_completed(results):
                yield results[done], done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(_running):
                _end(process)
            raise


def run(command: Sequence[str], *, timeout: float | None = None, **options: Any) -> subprocess.CompletedProcess[Any]:
    """Like subprocess.run, in a session of its own that is ended on interruption or timeout.

    Raises what Popen raises, and TimeoutExpired.
    """
    with subprocess.Popen(command, start_new_session=True, **options) as process:
        _running.add(process)
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            _end(process)
            raise
        finally:
            _running.discard(process)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _end(process: subprocess.Popen[Any]) -> None:
    _signal(process, signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_SECONDS)
    _signal(process, signal.SIGKILL)


def _signal(process: subprocess.Popen[Any], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
