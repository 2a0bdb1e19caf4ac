"""Finds programs; runs long-running ones and ends them, with their children, when patchctl is interrupted."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
            while not all(one.done() for one in results):  # one that is about to start a program will start it
                end_all()
                time.sleep(0.05)
            raise


def find_program(name: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the absolute path of a program on PATH, never one in the current folder, which may be anybody's; None if there is none."""
    path = environment.get("PATH", os.defpath)
    return shutil.which(name, path=os.pathsep.join(p for p in path.split(os.pathsep) if os.path.isabs(p)))


def ask(command: Sequence[str], seconds: float, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program that is given no input, for its output as text. Raises what Popen raises, and TimeoutExpired."""
    captured: dict[str, Any] = {"capture_output": True, "text": True, "errors": "replace", "check": False}
    return subprocess.run(command, stdin=subprocess.DEVNULL, timeout=seconds, **captured, **options)


def run(command: Sequence[str], *, timeout: float | None = None, **options: Any) -> subprocess.CompletedProcess[Any]:
    """Like subprocess.run, in a session of its own that is ended on interruption or timeout.

    Raises what Popen raises, and TimeoutExpired.
    """
    process = start(command, **options)
    with process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            _end(process)
            raise
        finally:
            forget(process)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a program in a session of its own, which is ended when patchctl ends unless `forget` was called.

    Raises what Popen raises.
    """
    with _signals_deferred():
        process = subprocess.Popen(command, start_new_session=True, **options)
        _running.add(process)
    return process


def forget(process: subprocess.Popen[Any]) -> None:
    """The program is over, or the caller has ended it."""
    _running.discard(process)


@atexit.register
def end_all() -> None:
    """End every program that is still known."""
    for process in list(_running):
        _end(process)
        forget(process)


@contextlib.contextmanager
def _signals_deferred() -> Iterator[None]:
    """Handle signals after the block: a handler that raises while Popen is starting a program loses the only handle on it."""
    came: list[int] = []
    handlers: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        handlers = {number: handler for number, handler in found.items() if callable(handler)}
    for number in handlers:
        signal.signal(number, lambda got, _: came.append(got))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for number in came:
        handlers[number](number, None)


def _end(process: subprocess.Popen[Any]) -> None:
    _signal(process, signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_SECONDS)
    _signal(process, signal.SIGKILL)


def _signal(process: subprocess.Popen[Any], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
