"""The workspace's lock when its holder died, was somebody else, or is none at all."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from on_disk import Workspace, command, environment, snapshot

needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
# Holds the lock of argv[1] until it is killed; says so by a file.
HOLDER = """
import sys, time
from pathlib import Path
from patchctl.workspace.workspace_lock import workspace_lock
with workspace_lock(Path(sys.argv[1])):
    Path(sys.argv[2]).touch()
    time.sleep(300)
"""


@pytest.fixture
def applied(ws: Workspace) -> Workspace:
    ws.apply("plain")
    return ws


@contextmanager
def held(ws: Workspace, tmp_path: Path, *before: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds the workspace, killed as the block ends; `before` are the words before its command line."""
    mark = tmp_path / "held"
    process = subprocess.Popen(
        [*before, sys.executable, "-c", HOLDER, str(ws.folder), str(mark)], env=environment(ws.made)
    )
    end = time.monotonic() + 60
    try:
        while not mark.exists():
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_killed_holder_is_no_hindrance(applied: Workspace, tmp_path: Path) -> None:
    with held(applied, tmp_path) as process:
        message = applied.refused(6, "apply", "--profile", "full")
        assert f"process {process.pid} on {os.uname().nodename}" in message
    assert (applied.folder / ".patchctl/lock").read_text().startswith(f"{process.pid} ")
    applied.apply("full")
    applied.assert_healthy()


@pytest.mark.parametrize(
    "text",
    ["{pid} {host}\n", "1 {host}\n", "{pid} other-node\n", "4194304\n", "", "\0" * 64, "\x1b]0;x\x07\n", "9" * 5000],
    ids=["number-used-again", "init", "other-host", "gone", "empty", "zeros", "control", "long"],
)
def test_what_a_dead_run_wrote_holds_nobody(applied: Workspace, text: str) -> None:
    """The number may be another process's by now, of this machine or another, of this container or another."""
    lock = applied.folder / ".patchctl/lock"
    lock.write_text(text.format(pid=os.getpid(), host=os.uname().nodename))
    applied.apply("full")
    applied.assert_healthy()


@pytest.mark.parametrize("text", ["", "\x1b]0;x\x07\n", "12 a b\n"])
def test_a_live_lock_with_a_strange_text_holds(applied: Workspace, tmp_path: Path, text: str) -> None:
    with held(applied, tmp_path):
        (applied.folder / ".patchctl/lock").write_text(text)
        message = applied.refused(6, "revert")
        assert "process unknown" in message and "\x1b" not in message


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a PID namespace")
def test_a_holder_in_another_container(applied: Workspace, tmp_path: Path) -> None:
    """There it is process 1, which is somebody here: the kernel's lock counts, not the number."""
    with held(applied, tmp_path, "unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts"):
        assert "process 1 on" in applied.refused(6, "apply", "--profile", "full")
    end = time.monotonic() + 10
    while applied.run("apply", "--profile", "full").returncode == 6:
        assert time.monotonic() < end
    applied.assert_healthy()


def strange(lock: Path, kind: str, outside: Path) -> None:
    """Put something that is no lock in its place."""
    lock.unlink()
    if kind == "link":
        lock.symlink_to(outside)
    elif kind == "dangling-link":
        lock.symlink_to(outside.with_name("nowhere"))
    elif kind == "folder":
        lock.mkdir()
    elif kind == "fifo":
        os.mkfifo(lock)
    elif kind == "socket":
        here = os.getcwd()
        os.chdir(lock.parent)  # a socket's path is short
        try:
            socket.socket(socket.AF_UNIX).bind(lock.name)
        finally:
            os.chdir(here)


@pytest.mark.parametrize("kind", ["link", "dangling-link", "folder", "fifo", "socket"])
def test_what_is_no_lock_is_named(applied: Workspace, tmp_path: Path, kind: str) -> None:
    outside = tmp_path / "precious"
    outside.write_text("kept\n")
    lock = applied.folder / ".patchctl/lock"
    strange(lock, kind, outside)
    before = snapshot(applied.folder)
    for verb in (("apply", "--profile", "full"), ("revert",)):
        assert str(lock) in applied.refused(2, *verb)
    assert snapshot(applied.folder) == before and outside.read_text() == "kept\n"
    assert not outside.with_name("nowhere").exists()
    shutil.rmtree(lock) if kind == "folder" else lock.unlink()
    applied.apply("full")


def test_a_hard_link_to_a_file_elsewhere_is_not_written(applied: Workspace, tmp_path: Path) -> None:
    outside = tmp_path / "precious"
    outside.write_text("kept\n")
    lock = applied.folder / ".patchctl/lock"
    lock.unlink()
    lock.hardlink_to(outside)
    applied.apply("full")
    assert outside.read_text() == "kept\n" and outside.stat().st_nlink == 1


@needs_strace
@pytest.mark.parametrize("error", ["ENOLCK", "EOPNOTSUPP", "ENOSYS"])
def test_a_file_system_without_locks_is_said_to_be_one(applied: Workspace, error: str) -> None:
    """Not shown on such a file system: the kernel's answer is put in by strace, for this one file."""
    lock = applied.folder / ".patchctl/lock"
    before = applied.everything()
    traced = ["strace", "-f", "-o", os.devnull, "-P", str(lock), "-e", f"inject=flock:error={error}"]
    line = command(applied.made, "apply", "--profile", "full", "--workspace", str(applied.folder))
    done = subprocess.run([*traced, *line], env=environment(applied.made), capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "has no locks" in done.stderr and str(lock) in done.stderr, done.stderr
    assert applied.everything() == before


REPLACED: dict[str, Callable[[Path], object]] = {
    "deleted": lambda lock: lock.unlink(),
    "another-file": lambda lock: (lock.unlink(), lock.touch()),
}


@pytest.mark.parametrize("how", REPLACED)
def test_a_lock_taken_away_from_its_holder(applied: Workspace, tmp_path: Path, how: str) -> None:
    """Whoever removes a live lock lets two runs in; both end, and the workspace is not broken by the removal itself."""
    with held(applied, tmp_path):
        REPLACED[how](applied.folder / ".patchctl/lock")
        applied.apply("full")
    applied.assert_healthy()
