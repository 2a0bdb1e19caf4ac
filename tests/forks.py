"""Runs Python programs by forking a process that has imported what they begin with.

A start of patchctl is 0.15 seconds of imports, one of torch one to four, and the tests start thousands. `Forks` keeps one
such process an interpreter and forks it for each run: environment, folder, arguments and standard streams are the run's own. What
fork cannot give a program is a reason for a process of its own (`fits`): settings that the interpreter or a library reads as
it starts. Programs that begin alike, with the imports of an engine, are forked from one that has run its own first statements
(`ahead`). PATCHCTL_TEST_FORKS=0 starts every program anew; `make test-processes` does, so that a fork can hide no fault.
"""

from __future__ import annotations

import array
import ast
import atexit
import contextlib
import copy
import importlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

FORKS = os.environ.get("PATCHCTL_TEST_FORKS") != "0"
# Read once, when an interpreter or a library of it starts.
AT_START = ("PYTHON", "LD_", "LANG", "LC_", "OMP_", "MKL_", "NUMBA_", "RAY_", "TORCH", "MALLOC_")
PER_RUN = {"PYTHONPATH", "PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE"}
# Within this time a program has begun, or something is wrong.
BEGINS_S = 600
# What the ranks of one run have each of its own.
OF_A_RANK = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


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
        self._server: subprocess.Popen[bytes] | None = subprocess.Popen(
            command, env=self._environment, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True
        )
        theirs.close()
        self._requests = ours
        atexit.register(self.close)

    def close(self) -> None:
        """End the server; what it forked goes on."""
        self._requests.close()
        if self._server:
            self._server.wait()

    def ahead(self, arguments: Sequence[str], environment: Mapping[str, str], cwd: Path) -> Forks | None:
        """The same for runs of the program ARGUMENTS[0] alone, in this environment but for OF_A_RANK: from a process that has run what
        `beginning` finds. None where that fails, leaves a thread, or reads what is a rank's: all of it is the run's own then."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        common = {name: value for name, value in environment.items() if name not in OF_A_RANK}
        with theirs:
            self._send(b"ahead", {"argv": list(arguments), "env": common, "cwd": str(cwd)}, theirs.fileno())
        ours.settimeout(BEGINS_S)
        if not ours.recv(8):
            ours.close()
            return None
        ours.settimeout(None)
        forks = copy.copy(self)
        forks._requests, forks._server = ours, None
        return forks

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
            self._send(b"run", request, theirs.fileno(), nothing.fileno(), out.fileno(), err.fileno())
        return Forked(ours)

    def _send(self, kind: bytes, request: Mapping[str, Any], *descriptors: int) -> None:
        """Requests may be longer than a packet: the socket carries descriptors, a file the words."""
        with _written(json.dumps(request)) as words:
            fds = array.array("i", [words.fileno(), *descriptors])
            self._requests.sendmsg([kind], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])


def beginning(source: str) -> tuple[list[ast.stmt], list[ast.stmt], list[int]]:
    """The statements that a program begins with and that are the same in each of its runs, those behind, and which of its arguments
    the first read: imports, settings of the environment, and `MODULE.prepare(...)`, which stand-ins want before what they stand in for."""
    body = ast.parse(source).body
    length = next((at for at, one in enumerate(body) if not _is_the_same(one)), len(body))
    numbers = [int(found) for one in body[:length] for found in _arguments_of(one) if found is not None]
    return body[:length], body[length:], sorted({*numbers})


def _is_the_same(one: ast.stmt) -> bool:
    if isinstance(one, ast.Import | ast.ImportFrom):
        return True
    if None in _arguments_of(one):
        return False
    if isinstance(one, ast.Assign):
        settings = [f"{ast.unparse(target.value)}" for target in one.targets if isinstance(target, ast.Subscript)]
        return settings == ["os.environ"] and isinstance(one.value, ast.Constant)
    if isinstance(one, ast.Expr) and isinstance(one.value, ast.Call):
        return isinstance(one.value.func, ast.Attribute) and one.value.func.attr == "prepare"
    return isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)


def _arguments_of(one: ast.stmt) -> list[int | None]:
    """The numbers of the `sys.argv[N]` that a statement reads, None for another use of sys.argv."""
    uses = [use for use in ast.walk(one) if isinstance(use, ast.Attribute) and ast.unparse(use) == "sys.argv"]
    picked = {id(use.value): use.slice for use in ast.walk(one) if isinstance(use, ast.Subscript)}
    slices = [picked.get(id(use)) for use in uses]
    return [one.value if isinstance(one, ast.Constant) and type(one.value) is int else None for one in slices]


def _written(text: str) -> IO[bytes]:
    file = tempfile.TemporaryFile()  # noqa: SIM115  (its caller closes it)
    file.write(text.encode())
    file.flush()
    file.seek(0)
    return file


def _at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in environment.items() if k.startswith(AT_START) and k not in PER_RUN}


# ---- the server: the standard library alone, under any interpreter


def _serve(requests: socket.socket, rest: Callable[[], None] | None = None) -> None:
    """Fork a run for each request until the other side is gone; of what is left of a program that has begun, where there is one."""
    base = [path for path in sys.path if path not in os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    while True:
        message, ancillary, *_ = requests.recvmsg(16, socket.CMSG_SPACE(5 * 4))
        if not message:
            return
        fds = array.array("i")
        fds.frombytes(ancillary[0][2])
        if os.fork() == 0:
            requests.close()
            if message == b"ahead":
                words, serving = fds
                _begin(words, serving, base)
            _watch(list(fds), base, rest)
        for fd in fds:
            os.close(fd)
        _reap()


def _watch(fds: list[int], base: list[str], rest: Callable[[], None] | None) -> None:
    """Fork the run and tell how it ended: the server stays free for the next."""
    words, answering, *streams = fds
    answers = socket.socket(fileno=answering)
    pid = os.fork()
    if pid == 0:
        os.setsid()
        answers.close()
        _run(_request(words), streams, base, rest)
    for fd in (words, *streams):
        os.close(fd)
    try:
        answers.sendall(struct.pack("i", pid))
        _, status = os.waitpid(pid, 0)
        answers.sendall(struct.pack("i", os.waitstatus_to_exitcode(status)))
    except OSError:
        pass  # nobody waits any more
    os._exit(0)


def _request(words: int) -> dict[str, Any]:
    with open(words, "rb") as file:
        return json.loads(file.read())  # type: ignore[no-any-return]


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _begin(words: int, requests: int, base: list[str]) -> None:
    """Run what a program begins with, and be the server of its runs, in a forked child: this does not return."""
    try:
        os.setsid()
        request = _request(words)
        _enter(request, [os.open(os.devnull, os.O_RDWR) for _ in range(3)], base)
        file = request["argv"][0]
        source = Path(file).read_text(encoding="utf-8")
        first, rest, _ = beginning(source)
        future = [one for one in first if isinstance(one, ast.ImportFrom) and one.module == "__future__"]
        main = _main_module(request["argv"])
        with _reads_of(OF_A_RANK) as read:
            exec(_compiled(first, file), main.__dict__)
        if not read and len(os.listdir("/proc/self/task")) == 1:
            answers = socket.socket(fileno=requests)
            answers.send(b"begun")
            _serve(answers, lambda: exec(_compiled([*future, *rest], file), main.__dict__))
    finally:
        os._exit(0)


def _compiled(body: list[ast.stmt], file: str) -> Any:
    return compile(ast.Module(body, type_ignores=[]), file, "exec", dont_inherit=True)


@contextlib.contextmanager
def _reads_of(names: set[str]) -> Any:
    """Which of these variables of the environment are read meanwhile."""
    read: set[str] = set()
    kind = type(os.environ)
    get = kind.__getitem__

    def noting(self: Any, name: str) -> str:
        read.update({name} & names)
        return get(self, name)

    kind.__getitem__ = noting  # type: ignore[method-assign]
    try:
        yield read
    finally:
        kind.__getitem__ = get  # type: ignore[method-assign]


def _run(request: dict[str, Any], fds: list[int], base: list[str], rest: Callable[[], None] | None) -> None:
    """Be `python ARGV`, or the rest of it, in a forked child: this does not return."""
    code = 70
    try:
        if rest:
            _take(fds)
            os.environ.update({name: request["env"][name] for name in OF_A_RANK & {*request["env"]}})
            os.chdir(request["cwd"])
            sys.argv[:] = request["argv"]
            code = _exit_code(rest)
        else:
            _enter(request, fds, base)
            code = _exit_code(lambda: _execute(request["argv"], request["cwd"]))
    finally:
        os._exit(code & 0xFF)


def _take(fds: list[int]) -> None:
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)


def _enter(request: dict[str, Any], fds: list[int], base: list[str]) -> None:
    """Have the run's streams, environment, folder and path."""
    environment = request["env"]
    _take(fds)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(request["cwd"])
    _streams()
    sys.pycache_prefix = environment.get("PYTHONPYCACHEPREFIX")
    sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))
    sys.path[:] = [*filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)), *base]
    sys.path_importer_cache.clear()
    importlib.invalidate_caches()
    sys.modules.pop("sitecustomize", None)
    with contextlib.suppress(ImportError):
        importlib.import_module("sitecustomize")


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
    if argv[0] == "-m":
        import runpy

        sys.path.insert(0, cwd)
        sys.argv = ["-m", *argv[2:]]
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        return
    main = _main_module(argv)
    with open(argv[0], "rb") as source:
        exec(compile(source.read(), argv[0], "exec", dont_inherit=True), main.__dict__)


def _main_module(argv: list[str]) -> types.ModuleType:
    """What the program is run in, with the path that it finds what lies beside it by."""
    sys.path.insert(0, os.path.dirname(argv[0]))
    sys.argv = list(argv)
    main = types.ModuleType("__main__")
    main.__file__ = argv[0]
    sys.modules["__main__"] = main
    return main


def _exit_code(program: Callable[[], None]) -> int:
    """Run it and end as the interpreter does: the code of its exit, a traceback, threads, exit functions, full streams."""
    import threading
    import traceback

    code = 0
    try:
        program()
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
