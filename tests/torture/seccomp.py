"""Stops every state-changing system call of a process tree and asks what shall become of it: seccomp's user notification.

The kernel holds the caller until the supervisor answers, so the calls of all processes come in one order, and what is killed
at a call is killed right before it. Linux 5.5 or newer on x86_64, by ctypes: no compiler and no strace is needed.
"""

from __future__ import annotations

import array
import ctypes
import errno
import fcntl
import os
import platform
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

# x86_64, asm/unistd_64.h. By what they take: (argument of the folder's descriptor or None, argument of the path), or a descriptor.
PATHS: dict[int, tuple[str, int | None, int]] = {
    2: ("open", None, 0), 257: ("openat", 0, 1), 85: ("creat", None, 0), 437: ("openat2", 0, 1), 76: ("truncate", None, 0),
    82: ("rename", None, 0), 264: ("renameat", 0, 1), 316: ("renameat2", 0, 1),
    83: ("mkdir", None, 0), 258: ("mkdirat", 0, 1), 84: ("rmdir", None, 0), 133: ("mknod", None, 0), 259: ("mknodat", 0, 1),
    86: ("link", None, 1), 265: ("linkat", 2, 3), 87: ("unlink", None, 0), 263: ("unlinkat", 0, 1),
    88: ("symlink", None, 1), 266: ("symlinkat", 1, 2), 90: ("chmod", None, 0), 268: ("fchmodat", 0, 1), 452: ("fchmodat2", 0, 1),
    92: ("chown", None, 0), 94: ("lchown", None, 0), 260: ("fchownat", 0, 1), 132: ("utime", None, 0), 235: ("utimes", None, 0),
    261: ("futimesat", 0, 1), 280: ("utimensat", 0, 1), 188: ("setxattr", None, 0), 189: ("lsetxattr", None, 0),
    197: ("removexattr", None, 0), 198: ("lremovexattr", None, 0),
}  # fmt: skip
HANDLES: dict[int, tuple[str, int]] = {
    1: ("write", 0), 18: ("pwrite64", 0), 20: ("writev", 0), 296: ("pwritev", 0), 328: ("pwritev2", 0), 40: ("sendfile", 0),
    326: ("copy_file_range", 2), 77: ("ftruncate", 0), 285: ("fallocate", 0), 74: ("fsync", 0), 75: ("fdatasync", 0),
    91: ("fchmod", 0), 93: ("fchown", 0), 190: ("fsetxattr", 0), 199: ("fremovexattr", 0), 9: ("mmap", 4),
}  # fmt: skip
LIVES = {59: "execve", 322: "execveat", 231: "exit_group"}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_RECEIVE, _SEND, _CONTINUE = 0xC0502100, 0xC0182101, 1
_PATH_MAX = 4096
_OPENS = ("open", "openat", "openat2", "creat")
_AT_FDCWD = -100


@dataclass(frozen=True)
class Call:
    """One call that is held: `path` is what it changes (of a rename: the old name), `exists` whether that was there then.

    `kind`: `file`, `pipe` (and sockets), `life` (a process begins or ends), `other` (a device, nothing that can be named).
    `changes` says that it changes a file, and would succeed: a second mkdir, the unlink of nothing change nothing.
    """

    pid: int  # of the process, whichever of its threads it is
    name: str
    kind: str
    path: str = ""
    flags: int = 0
    exists: bool = True
    changes: bool = False

    @property
    def opens(self) -> bool:
        return self.name in _OPENS


@dataclass(frozen=True)
class Answer:
    """What becomes of a call: it goes on, it fails with an errno, or somebody is killed in it."""

    error: int = 0
    kill: tuple[int, ...] = ()  # ids of processes; negative: of a group


GO_ON = Answer()
Decide = Callable[[Call, int], Answer]


@dataclass(frozen=True)
class Ended:
    """How the first process ended (negative: by this signal), what it printed, and whether the tree had to be stopped."""

    status: int
    out: str
    err: str
    hung: bool = False


def why_not() -> str | None:
    """Why this machine cannot do it, or None."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return f"the numbers of the system calls are those of Linux on x86_64, and this is {platform.machine()}"
    try:
        known = Path("/proc/sys/kernel/seccomp/actions_avail").read_text(encoding="ascii").split()
    except OSError:
        known = []
    if "user_notif" not in known:
        return "this kernel has no seccomp user notification"
    try:
        run(lambda: 0, lambda call, first: GO_ON, 10)
    except OSError as error:
        return f"a filter of system calls cannot be installed here: {error.strerror}"
    return None


def run(child: Callable[[], int], decide: Decide | None, seconds: float) -> Ended:
    """Fork, run `child` in a session of its own, and ask `decide` at every call until all processes ended.

    `decide` gets the call, and the id of the first process; without it nothing is held and no filter is there.
    """
    outs = [os.memfd_create(name) for name in ("out", "err")]
    mine, its = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        mine.close()
        _be_child(child, its if decide else None, outs)
    its.close()
    hung = False
    try:
        if decide is not None:
            _, fds, _, _ = socket.recv_fds(mine, 1, 1)
            if not fds:
                os.waitpid(pid, 0)
                raise OSError(errno.EPERM, "it was refused")
            hung = _serve(fds[0], pid, decide, time.monotonic() + seconds)
            os.close(fds[0])
        _, status = os.waitpid(pid, 0)
        shown = [os.pread(fd, 1 << 20, 0).decode("utf-8", "replace") for fd in outs]
        return Ended(os.waitstatus_to_exitcode(status), shown[0], shown[1], hung)
    finally:
        mine.close()
        for fd in outs:
            os.close(fd)


def _be_child(child: Callable[[], int], its: socket.socket | None, outs: list[int]) -> NoReturn:
    code = 70
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        for fd, target in ((null, 0), (outs[0], 1), (outs[1], 2)):
            os.dup2(fd, target)
        if its is not None:
            listener = _install()
            socket.send_fds(its, [b"x"], [listener])
            os.close(listener)
            its.close()
        code = child()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _serve(listener: int, first: int, decide: Decide, end: float) -> bool:
    """Answer until nobody is left; returns whether the time was up."""
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    hung = False
    processes: dict[int, int] = {}
    while True:
        events = poll.poll(max(0.0, (end - time.monotonic()) * 1000))
        if not events:
            if hung:
                return True
            hung = True
            os.killpg(first, signal.SIGKILL)
            end = time.monotonic() + 5
            continue
        if not events[0][1] & select.POLLIN:
            return hung  # the last process that had the filter is gone
        held = bytearray(80)
        try:
            fcntl.ioctl(listener, _RECEIVE, held)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINTR):
                continue
            raise
        _answer(listener, held, first, processes, decide)


def _answer(listener: int, held: bytearray, first: int, processes: dict[int, int], decide: Decide) -> None:
    ident, pid, _, nr, _, _, *args = struct.unpack("=QIIiIQ6Q", held)
    if pid not in processes or nr in LIVES:
        processes[pid] = _process_of(pid)
    try:
        call = _call(processes[pid], nr, args)
    except OSError:  # it was killed meanwhile
        call = Call(pid, "gone", "other")
    answer = decide(call, first)
    for target in answer.kill:
        try:
            os.kill(target, signal.SIGKILL)
        except ProcessLookupError:
            pass
    # One that was killed must not make its call before it dies: told to go on it would, when the answer is faster than the signal.
    dies = any(target in (pid, processes[pid]) or target < 0 for target in answer.kill)
    error = errno.EINTR if dies else answer.error
    reply = struct.pack("=QqiI", ident, 0, -error, 0 if error else _CONTINUE)
    try:
        fcntl.ioctl(listener, _SEND, bytearray(reply))
    except OSError as error:
        if error.errno != errno.ENOENT:  # it was killed meanwhile
            raise


def _process_of(thread: int) -> int:
    try:
        text = Path(f"/proc/{thread}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return thread
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("Tgid:")), thread)


def _call(pid: int, nr: int, args: list[int]) -> Call:
    if nr in LIVES:
        there = LIVES[nr] != "execve" or os.path.exists(_path(pid, _AT_FDCWD, args[0]))  # git tries each folder of PATH
        return Call(pid, LIVES[nr], "life" if there else "other")
    if nr in HANDLES:
        name, which = HANDLES[nr]
        path = _link(f"/proc/{pid}/fd/{_signed(args[which])}")
        if path.startswith(("pipe:", "socket:")):
            return Call(pid, name, "pipe", path)
        if not path.startswith("/") or path.startswith(("/dev/null", "/dev/tty", "/memfd:")):
            return Call(pid, name, "other", path)
        return Call(pid, name, "file", path, changes=True)
    name, folder, which = PATHS[nr]
    path = _path(pid, _AT_FDCWD if folder is None else _signed(args[folder]), args[which])
    flags = args[which + 1] if name in ("open", "openat", "unlinkat") else 0
    if name == "creat":
        flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY
    kind = "other" if path in ("/dev/null", "/dev/tty", "") or path.startswith("pipe:") else "file"
    exists = os.path.lexists(path)
    return Call(pid, name, kind, path, flags, exists, kind == "file" and _succeeds(name, path, flags, exists))


def _succeeds(name: str, path: str, flags: int, exists: bool) -> bool:
    if name in _OPENS:
        return not exists if flags & os.O_EXCL else exists or bool(flags & os.O_CREAT)
    if name.startswith(("mkdir", "symlink", "link", "mknod")):
        return not exists
    if name == "rmdir" or (name == "unlinkat" and flags):
        return exists and not os.listdir(path)
    return exists


def _path(pid: int, folder: int, address: int) -> str:
    if address == 0:
        return _link(f"/proc/{pid}/fd/{folder}")
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        text = os.fsdecode(os.pread(memory.fileno(), _PATH_MAX, address).split(b"\0")[0])
    if not text:  # no file to the kernel; and what the memory of a process that ends meanwhile reads as
        return ""
    if text.startswith("/dev/fd/"):
        return _link(f"/proc/{pid}/fd/{text.removeprefix('/dev/fd/')}")
    top = f"/proc/{pid}/cwd" if folder == _AT_FDCWD else f"/proc/{pid}/fd/{folder}"
    path = os.path.normpath(os.path.join(_link(top), text))
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _signed(value: int) -> int:
    return ctypes.c_int32(value & 0xFFFFFFFF).value


def _install() -> int:
    """Install the filter in this process for good; returns the descriptor on which it tells. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    code = _program()
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    if libc.prctl(38, 1, 0, 0, 0) != 0:  # PR_SET_NO_NEW_PRIVS
        raise OSError(ctypes.get_errno(), "prctl")
    listener = libc.syscall(317, 1, 1 << 3, program)  # seccomp, SECCOMP_SET_MODE_FILTER, FLAG_NEW_LISTENER
    if listener < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    return int(listener)


def _program() -> bytes:
    """Classic BPF: hold these calls, of open and mmap those that can write; let everything else pass."""
    load, equal, bits, give = 0x20, 0x15, 0x45, 0x06
    asked = [n for n in (*PATHS, *HANDLES, *LIVES) if n not in (2, 257, 9)]
    code: list[tuple[int, int, int, int]] = [
        (load, 0, 0, 4), (equal, 1, 0, 0xC000003E), (give, 0, 0, 0x7FFF0000), (load, 0, 0, 0),
        # open, openat: the flags; mmap: shared, and writable
        (equal, 0, 3, 2), (load, 0, 0, 24), (bits, 0, 1, _WRITING), (give, 0, 0, 0x7FC00000),
        (load, 0, 0, 0), (equal, 0, 3, 257), (load, 0, 0, 32), (bits, 0, 1, _WRITING), (give, 0, 0, 0x7FC00000),
        (load, 0, 0, 0), (equal, 0, 5, 9), (load, 0, 0, 40), (bits, 0, 3, 1), (load, 0, 0, 32), (bits, 0, 1, 2),
        (give, 0, 0, 0x7FC00000), (load, 0, 0, 0),
    ]  # fmt: skip
    for left, number in zip(range(len(asked), 0, -1), asked, strict=True):
        code.append((equal, left, 0, number))
    code += [(give, 0, 0, 0x7FFF0000), (give, 0, 0, 0x7FC00000)]
    return array.array("B", b"".join(struct.pack("HBBI", *line) for line in code)).tobytes()
