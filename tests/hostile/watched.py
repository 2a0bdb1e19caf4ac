"""Runs the tool under the system's eyes: every file-changing call of the whole process tree, told by strace.

    done = run_all([["apply", ...], ["verify", ...]], home=home, results=folder)
    done.runs[0].code, done.runs[0].stderr, done.changed, done.executed

One process runs all the command lines, one after the other, so that hundreds cost seconds. Where strace is missing or may not
trace, the runs happen all the same, and `changed` is None.
"""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
RUNNER = """
import json, os, sys
from patchctl.__main__ import run
lines, results = json.load(open(sys.argv[1])), sys.argv[2]
for number, line in enumerate(lines):
    for fd, name in ((1, "out"), (2, "err")):
        sys.stdout.flush(); sys.stderr.flush()
        file = os.open(f"{results}/{number}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, fd)
        os.close(file)
    try:
        code = run(line) if line[0] != "--write" else open(line[1], "w").write(line[2]) and 0
    except SystemExit as ended:
        code = ended.code
    sys.stdout.flush(); sys.stderr.flush()
    with open(f"{results}/{number}.code", "w") as out:
        out.write(str(code))
"""
_ONE = [
    "creat",
    "mkdir",
    "rmdir",
    "unlink",
    "truncate",
    "chmod",
    "chown",
    "lchown",
    "mknod",
    "utime",
    "utimes",
    "setxattr",
    "lsetxattr",
    "removexattr",
    "lremovexattr",
    "mkdirat",
    "unlinkat",
    "fchmodat",
    "fchmodat2",
    "fchownat",
    "utimensat",
    "futimesat",
    "mknodat",
]
_TWO = ["rename", "renameat", "renameat2", "link", "linkat"]
_MADE = ["symlink", "symlinkat"]  # the first name is only what the link says
_OPEN = ["open", "openat", "openat2"]
_BY_FD = ["fchmod", "fchown", "ftruncate", "fallocate", "fsetxattr", "fremovexattr"]
_OTHER = ["mount", "umount2", "pivot_root", "chroot", "bind"]
_PROCESS = ["chdir", "fchdir", "clone", "clone3", "fork", "vfork", "execve"]
_CALL = re.compile(r"(?P<pid>\d+) +(?P<name>\w+)\((?P<args>.*)\) += (?P<value>-?\d+|\?)(?P<rest>.*)")
_RESUMED = re.compile(r"(?P<pid>\d+) +<\.\.\. (?P<name>\w+) resumed>(?P<rest>.*)")
_NAME = re.compile(r'(?:(?:AT_FDCWD|\d+)<(?P<at>[^>]*)>, )?(?P<text>"(?:[^"\\]|\\.)*")')
_FD = re.compile(r"-?\d+<(?P<path>[^>]*)>")


@dataclass(frozen=True)
class Run:
    """What one command line printed, and its exit code."""

    code: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Watched:
    """`changed` are the real paths that any process made, wrote to, renamed or removed; `executed` the programs started."""

    runs: Sequence[Run]
    changed: frozenset[str] | None
    executed: frozenset[str] | None

    def outside(self, *allowed: Path) -> list[str]:
        """What was changed and lies in none of these folders; nothing when nobody watched."""
        tops = [os.path.realpath(a) for a in allowed]
        inside = (*(t + "/" for t in tops), "/dev/null", "/dev/tty", "/proc/self/", "pipe:", "socket:")
        return sorted(c for c in self.changed or () if c not in tops and not c.startswith(inside))


@functools.cache
def why_unwatched() -> str | None:
    """Why strace cannot be used here; None where it can."""
    if shutil.which("strace") is None:
        return "there is no strace"
    done = subprocess.run(["strace", "-f", "-o", os.devnull, "true"], capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"strace may not trace: {done.stderr.strip()[:200]}"


def environment(home: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """An empty home, its own folder for temporary files, and nothing of this machine's configuration."""
    (home / "tmp").mkdir(parents=True, exist_ok=True)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PATCHCTL_", "XDG_", "PIP_", "GIT_"))}
    own = {
        "HOME": str(home),
        "TMPDIR": str(home / "tmp"),
        "PYTHONPATH": str(REPO),
        "PIP_NO_INDEX": "1",
        "PATCHCTL_NO_PROGRESS": "1",
    }
    return {**kept, **own, "PYTHONDONTWRITEBYTECODE": "1", **(more or {})}


def run_all(
    lines: Sequence[Sequence[str]], *, home: Path, results: Path, env: Mapping[str, str] | None = None
) -> Watched:
    """Run these command lines of the tool, in the folder `home`; `--write FILE TEXT` is what a person does between two."""
    results.mkdir(parents=True)
    (results / "lines.json").write_text(json.dumps([list(line) for line in lines]))
    runner = [sys.executable, "-c", RUNNER, str(results / "lines.json"), str(results)]
    changed, executed = watch(runner, home=home, log=results / "strace.log", env=environment(home, env))
    runs = [_run(results, number) for number in range(len(lines))]
    return Watched(runs, changed, executed)


def _run(results: Path, number: int) -> Run:
    texts = [(results / f"{number}.{name}").read_bytes().decode("utf-8") for name in ("out", "err")]
    return Run(int((results / f"{number}.code").read_text()), *texts)


def watch(
    command: Sequence[str], *, home: Path, log: Path, env: Mapping[str, str]
) -> tuple[frozenset[str] | None, frozenset[str] | None]:
    """Run a program to its end; the paths that it and its children changed, and the programs that they started."""
    calls = ",".join([*_ONE, *_TWO, *_MADE, *_OPEN, *_BY_FD, *_OTHER, *_PROCESS])
    # `?` lets strace pass by a call that this machine's kernel does not have.
    strace = [
        "strace",
        "-f",
        "-y",
        "-qq",
        "--seccomp-bpf",
        "-s",
        "8192",
        "-o",
        str(log),
        "-e",
        f"trace=?{calls.replace(',', ',?')}",
    ]
    watched = why_unwatched() is None
    line = [*strace, *command] if watched else list(command)
    done = subprocess.run(line, env=dict(env), cwd=home, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return _read(log.read_bytes().decode("utf-8", "backslashreplace"), home) if watched else (None, None)


def _read(log: str, home: Path) -> tuple[frozenset[str], frozenset[str]]:
    changed: set[str] = set()
    executed: set[str] = set()
    begun: dict[str, str] = {}
    folders: dict[str, str] = {}
    forking: list[str] = []
    for line in log.splitlines():
        pid = line.partition(" ")[0]
        if pid not in folders:
            folders[pid] = folders[forking[-1]] if forking else os.path.realpath(home)
        if line.endswith("<unfinished ...>"):
            begun[pid] = line.removesuffix("<unfinished ...>")
            if re.match(r"\d+ +(v?fork|clone3?)\(", line):
                forking.append(pid)
            continue
        resumed = _RESUMED.fullmatch(line)
        if resumed:
            line = begun.pop(pid, "") + resumed["rest"]
        call = _CALL.fullmatch(line)
        if call is None or call["value"] in ("?", "-1"):
            continue
        name = call["name"]
        if name in ("clone", "clone3", "fork", "vfork"):
            folders.setdefault(call["value"], folders[pid])
            if pid in forking:
                forking.remove(pid)
        elif name == "chdir":
            folders[pid] = os.path.realpath(os.path.join(folders[pid], _names(call["args"])[0][1]))
        elif name == "fchdir":
            folders[pid] = _fd(call["args"])
        elif name == "execve":
            executed.add(os.path.join(folders[pid], _names(call["args"])[0][1]))
        else:
            changed.update(_changed(name, call["args"], call["rest"], folders[pid]))
    return frozenset(changed), frozenset(executed)


def _changed(name: str, args: str, rest: str, folder: str) -> list[str]:
    """The real paths that a successful call changed."""
    if name in _OPEN:
        writes = re.search(r"O_(WRONLY|RDWR|CREAT|TRUNC|APPEND)", args)
        return [_fd(f"0{rest}")] if writes else []
    if name in _BY_FD:
        return [_fd(args)]
    if name in _OTHER:
        return [] if name == "bind" and "sun_path" not in args else [f"{name}({args})"]
    names = _names(args)
    if name in _MADE:
        names = names[-1:]
    if not names:  # utimensat with a file descriptor alone
        return [_fd(args)]
    return [_real(os.path.join(folder, at, text)) for at, text in names]


def _real(path: str) -> str:
    """The folder's real path and the name in it: the call changes the entry, and a link is not followed."""
    top, _, last = os.path.normpath(path).rpartition("/") if not path.endswith("/..") else ("", "", path)
    return os.path.join(os.path.realpath(top or "/"), last)


def _names(args: str) -> list[tuple[str, str]]:
    """Every (folder of the file descriptor or "", name) of a call's arguments."""
    return [(m["at"] or "", _text(m["text"])) for m in _NAME.finditer(args)]


def _fd(text: str) -> str:
    found = _FD.search(text)
    return _text(f'"{found["path"]}"') if found else text


def _text(quoted: str) -> str:
    return os.fsdecode(ast.literal_eval("b" + quoted))
