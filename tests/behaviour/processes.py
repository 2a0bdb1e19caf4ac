"""Starts probe processes, waits with a limit, and leaves none behind."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from forks import Forked, Forks

TAIL_CHARS = 6000
POLL_S = 0.05
# Once a rank has died the others usually wait for it in a collective; they get this long to print their own error.
GRACE_S = 5.0


@dataclass(frozen=True)
class Finished:
    """How one process ended: `returncode` is None when it had to be killed."""

    returncode: int | None
    stdout: str
    stderr: str
    seconds: float

    def tail(self) -> str:
        """The end of both streams, for an error message."""
        return f"--- stdout\n{self.stdout[-TAIL_CHARS:]}\n--- stderr\n{self.stderr[-TAIL_CHARS:]}"


@dataclass
class _Running:
    process: subprocess.Popen[bytes] | Forked
    stdout: Path
    stderr: Path


def free_port() -> int:
    """A TCP port of the loopback interface that was free a moment ago, of those that Linux gives to nobody who asks for any one.

    Ranks take seconds until they listen, and gloo beside them opens many sockets of any number. Ray refuses a port of its
    workers' (10002 to 19999) for anything else.
    """
    while True:
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", random.randrange(20_000, 32_768)))
            return int(probe.getsockname()[1])


def kill_group(process: subprocess.Popen[bytes] | Forked) -> None:
    """Kills the process and everything that it started in its own session."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def run_group(
    command: Sequence[str],
    environments: Sequence[Mapping[str, str]],
    cwd: Path,
    timeout: float,
    forks: Forks | None = None,
) -> list[Finished]:
    """Runs `command` once for each environment, at the same time; `timeout` is in seconds for all of them together. With `forks`,
    which are of the interpreter that the command begins with, they are forked where that is the same.

    Output goes to files in `cwd`, because a grandchild that outlives its parent would hold a pipe open.
    """
    started = time.monotonic()
    running: list[_Running] = []
    try:
        for rank, environment in enumerate(environments):
            running.append(_start(command, environment, cwd, rank, forks))
        _wait(running, started + timeout)
    finally:
        codes = [one.process.poll() for one in running]
        for one in running:
            kill_group(one.process)
    seconds = time.monotonic() - started
    return [
        Finished(code, _text(one.stdout), _text(one.stderr), seconds) for code, one in zip(codes, running, strict=True)
    ]


def _start(
    command: Sequence[str], environment: Mapping[str, str], cwd: Path, rank: int, forks: Forks | None
) -> _Running:
    stdout, stderr = cwd / f"stdout.{rank}", cwd / f"stderr.{rank}"
    with stdout.open("wb") as out, stderr.open("wb") as err:
        if forks is not None and forks.fits(environment):
            return _Running(forks.start(command[1:], environment, cwd, out, err), stdout, stderr)
        process = subprocess.Popen(
            list(command),
            cwd=cwd,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
    return _Running(process, stdout, stderr)


def _wait(running: Sequence[_Running], deadline: float) -> None:
    """Returns when all have ended, at the deadline, or a little after one of several has failed."""
    while time.monotonic() < deadline:
        codes = [one.process.poll() for one in running]
        if None not in codes:
            return
        if any(codes):
            deadline = min(deadline, time.monotonic() + GRACE_S)
        time.sleep(POLL_S)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")
