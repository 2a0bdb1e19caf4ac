"""Runs Python programs by forking a process that has imported what they begin with.

A start of patchctl is 0.15 seconds of imports, one of torch one to four, and the tests start thousands. `Forks` keeps one
such process an interpreter and forks it for each run: environment, folder, arguments and standard streams are the run's own. What
fork cannot give a program is a reason for a process of its own (`fits`): settings that the interpreter or a library reads as
it starts. PATCHCTL_TEST_FORKS=0 starts every program anew; `make test-processes` does, so that a fork can hide no fault.
"""

from __future__ import annotations

import array
import atexit
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

FORKS = os.environ.get("PATCHCTL_TEST_FORKS") != "0"
# Read once, when an interpreter or a library of it starts.
AT_START = ("PYTHON", "LD_", "LANG", "LC_", "OMP_", "MKL_", "NUMBA_", "RAY_", "TORCH", "MALLOC_")
PER_RUN = {"PYTHONPATH", "PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE"}


class Forked:
    """A process forked from the server's, in a session of its own; as much of subprocess.Popen as the tests use."""

    def __init__(self, answers: socket.socket) -> None:
        self._answers = answers
        (self.pid,) = struct.unpack("i", answers.recv(4))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._result(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._result(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("a forked process", timeout or 0)
        return code

    def kill(self) -> None:
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def _result(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            self._answers.settimeout(timeout)
            try:
                (self.returncode,) = struct.unpack("i", self._answers.recv(4))
            except (BlockingIOError, TimeoutError):
                return None
            self._answers.close()
        return self.returncode


class Forks:
    """One interpreter with what it has of `preload` imported (`package.*` is all of a package). A run's environment may differ from
    `environment`, the server's, in nothing that is read at a start."""

    def __init__(self, python: str | Path, environment: Mapping[str, str], preload: Sequence[str]) -> None:
        self._environment = dict(environment)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [str(python), __file__, str(theirs.fileno()), *preload]
        self._server = subprocess.Popen(
            command, env=self._environment, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True
        )
        theirs.close()
        self._requests = ours
        atexit.register(self.close)

    def close(self) -> None:
        """End the server; what it forked goes on."""
        self._requests.close()
        self._server.wait()

    def fits(self, environment: Mapping[str, str]) -> bool:
        """Whether a run with this environment is the same when it is forked."""
        return _at_start(self._environment) == _at_start(environment)

    def start(
        self, arguments: Sequence[str], environment: Mapping[str, str], cwd: Path, out: IO[bytes], err: IO[bytes]
    ) -> Forked:
        """Run `python ARGUMENTS...` (a file, or -m and a module) with nothing on standard input."""
        ours, theirs = socket.socketpair()
        request = {"argv": list(arguments), "env": dict(environment), "cwd": str(cwd)}
        with open(os.devnull, "rb") as nothing, theirs:
            fds = array.array("i", [nothing.fileno(), out.fileno(), err.fileno(), theirs.fileno()])
            # Requests may be longer than a packet: the socket carries descriptors, a file the words.
            with _written(json.dumps(request)) as words:
                fds.append(words.fileno())
                self._requests.sendmsg([b"run"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        return Forked(ours)


def _written(text: str) -> IO[bytes]:
    file = tempfile.TemporaryFile()  # noqa: SIM115  (its caller closes it)
    file.write(text.encode())
    file.flush()
    file.seek(0)
    return file


def _at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in environment.items() if k.startswith(AT_START) and k not in PER_RUN}


# ---- the server: the standard library alone, under any interpreter


def _serve(requests: socket.socket) -> None:
    """Fork a run for each request until the other side is gone."""
    base = [path for path in sys.path if path not in os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    while True:
        message, ancillary, *_ = requests.recvmsg(16, socket.CMSG_SPACE(5 * 4))
        if not message:
            return
        fds = array.array("i")
        fds.frombytes(ancillary[0][2])
        if os.fork() == 0:
            requests.close()
            _watch(list(fds), base)
        for fd in fds:
            os.close(fd)
        _reap()


def _watch(fds: list[int], base: list[str]) -> None:
    """Fork the run and tell how it ended: the server stays free for the next."""
    answers = socket.socket(fileno=fds[3])
    pid = os.fork()
    if pid == 0:
        os.setsid()
        answers.close()
        with open(fds[4], "rb") as words:
            request = json.loads(words.read())
        _run(request["argv"], request["env"], request["cwd"], fds[:3], base)
    for fd in (*fds[:3], fds[4]):
        os.close(fd)
    try:
        answers.sendall(struct.pack("i", pid))
        _, status = os.waitpid(pid, 0)
        answers.sendall(struct.pack("i", os.waitstatus_to_exitcode(status)))
    except OSError:
        pass  # nobody waits any more
    os._exit(0)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _run(argv: list[str], environment: dict[str, str], cwd: str, fds: list[int], base: list[str]) -> None:
    """Be `python ARGV`, in a forked child: this does not return."""
    code = 70
    try:
        for number, fd in enumerate(fds):
            os.dup2(fd, number)
            os.close(fd)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(cwd)
        _streams()
        sys.pycache_prefix = environment.get("PYTHONPYCACHEPREFIX")
        sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))
        sys.path[:] = [*filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)), *base]
        sys.path_importer_cache.clear()
        code = _exit_code(lambda: _execute(argv, cwd))
    finally:
        os._exit(code & 0xFF)


def _streams() -> None:
    """Standard streams as Python opens them under LANG=C.UTF-8 and in its UTF-8 mode."""
    for name, number, mode, errors in (
        ("stdin", 0, "r", "surrogateescape"),
        ("stdout", 1, "w", "surrogateescape"),
        ("stderr", 2, "w", "backslashreplace"),
    ):
        buffered = bool(os.environ.get("PYTHONUNBUFFERED")) or number == 2
        stream = open(number, mode, 1 if buffered and mode == "w" else -1, "utf-8", errors, closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _execute(argv: list[str], cwd: str) -> None:
    import importlib
    import runpy
    import types

    importlib.invalidate_caches()
    sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError:
        pass
    if argv[0] == "-m":
        sys.path.insert(0, cwd)
        sys.argv = ["-m", *argv[2:]]
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        return
    file = argv[0]
    sys.path.insert(0, os.path.dirname(file))
    sys.argv = list(argv)
    main = types.ModuleType("__main__")
    main.__file__ = file
    sys.modules["__main__"] = main
    with open(file, "rb") as source:
        exec(compile(source.read(), file, "exec"), main.__dict__)


def _exit_code(program: object) -> int:
    """Run it and end as the interpreter does: the code of its exit, a traceback, threads, exit functions, full streams."""
    import threading
    import traceback

    code = 0
    try:
        program()  # type: ignore[operator]
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 120
    return code


def main() -> None:
    import gc
    import importlib
    import pkgutil

    requests = socket.socket(fileno=int(sys.argv[1]))
    del sys.path[0]  # where this file lies
    for name in sys.argv[2:]:
        try:
            package = importlib.import_module(name.removesuffix(".*"))
        except ModuleNotFoundError:
            continue
        if name.endswith(".*"):
            for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
                if not module.name.endswith("__main__"):
                    importlib.import_module(module.name)
    if "coverage" in sys.modules and (measured := sys.modules["coverage"].Coverage.current()):
        measured.save()  # the imports, once and not with each run
    gc.collect()
    gc.freeze()  # a child's collections leave the shared pages alone
    _serve(requests)


if __name__ == "__main__":
    main()
