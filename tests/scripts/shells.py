"""Runs the shell scripts as programs, and sees to it that none stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
FIXED = {
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "PYTHONNOUSERSITE": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray 2.5x asks for a token that a head makes in the home folder; the profiles' Ray has none.
    "RAY_AUTH_MODE": "disabled",
    "RAY_DISABLE_IMPORT_WARNING": "1",
}


@dataclass
class Program:
    """A program that runs in a session of its own, with its output in files."""

    process: subprocess.Popen[bytes]
    out_file: Path
    err_file: Path

    @property
    def out(self) -> str:
        return self.out_file.read_text(errors="replace")

    @property
    def err(self) -> str:
        return self.err_file.read_text(errors="replace")

    def wait(self, timeout: float = 60.0) -> int:
        """Its exit status. Raises AssertionError with its output when it takes longer, in seconds."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout} s\n{self.err[-3000:]}") from None

    def until(self, text: str, timeout: float = 60.0) -> None:
        """Waits until it has said this on standard error or output."""
        wait_until(lambda: text in self.err + self.out or self.process.poll() is not None, timeout)
        assert text in self.err + self.out, self.err[-3000:]

    def signal(self, number: signal.Signals) -> None:
        """To the script alone, as `kill PID` does."""
        self.process.send_signal(number)

    def interrupt(self) -> None:
        """As Ctrl-C: to every process of the terminal's foreground group."""
        os.killpg(self.process.pid, signal.SIGINT)


@dataclass
class Shell:
    """A clean environment, and what was started in it."""

    folder: Path
    path: Sequence[Path]
    running: list[Program] = field(default_factory=list)

    def environment(self, **more: str) -> dict[str, str]:
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        own = {"PATH": os.pathsep.join(map(str, self.path)), "HOME": str(home), "TMPDIR": str(self.folder)}
        return FIXED | own | more

    def run(
        self, script: str, *args: object, cwd: Path | None = None, timeout: float = 60.0, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs a script below scripts/ to its end; `timeout` in seconds."""
        return subprocess.run(
            [str(SCRIPTS / script), *map(str, args)],
            cwd=cwd or self.folder,
            env=self.environment(**env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def start(self, program: str | Path, *args: object, cwd: Path | None = None, **env: str) -> Program:
        """Starts a script below scripts/, or another program, and returns at once."""
        number = len(self.running)
        out, err = self.folder / f"out.{number}", self.folder / f"err.{number}"
        with out.open("wb") as out_stream, err.open("wb") as err_stream:
            process = subprocess.Popen(
                [str(SCRIPTS / program if not os.path.isabs(program) else program), *map(str, args)],
                cwd=cwd or self.folder,
                env=self.environment(**env),
                stdin=subprocess.DEVNULL,
                stdout=out_stream,
                stderr=err_stream,
                start_new_session=True,
            )
        self.running.append(Program(process, out, err))
        return self.running[-1]

    def kill_all(self) -> None:
        """Every session that was started here, and every process that Ray's script marked in this folder."""
        for program in self.running:
            for pid in [program.process.pid, *session(program.process.pid)]:
                _kill(pid)
            program.process.wait()
        for pid in marked(str(self.folder)):
            _kill(pid)


def program(folder: Path, name: str, text: str) -> Path:
    """Writes an executable file."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(text)
    file.chmod(0o755)
    return file


def wait_until(there: Callable[[], bool], timeout: float = 60.0) -> None:
    """Asks every 0.1 s; returns when it is there or after `timeout` seconds."""
    end = time.monotonic() + timeout
    while not there() and time.monotonic() < end:
        time.sleep(0.1)


def marked(state: str) -> list[int]:
    """The living processes whose PATCHCTL_RAY_STATE begins so."""
    wanted = f"PATCHCTL_RAY_STATE={state}".encode()
    return [pid for pid in _processes() if any(v.startswith(wanted) for v in _read(pid, "environ").split(b"\0"))]


def session(leader: int) -> list[int]:
    """The living processes of a session."""
    return [pid for pid in _processes() if _stat(pid)[3:4] == [str(leader)]]


def alive(pid: int) -> bool:
    """Whether a process runs; one that waits for its parent does not."""
    return _stat(pid)[:1] not in ([], ["Z"])


def named(pids: Sequence[int], name: str) -> list[int]:
    return [pid for pid in pids if _read(pid, "comm").decode().strip() == name]


def _processes() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _stat(pid: int) -> list[str]:
    """State, parent, group, session, ... of a process; nothing of one that is gone."""
    return _read(pid, "stat").decode(errors="replace").rpartition(") ")[2].split()


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
