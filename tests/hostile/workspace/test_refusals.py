"""Each refusal: its exit code, the file and line in its message, and every tree as it was."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from distribution import Made, git
from on_disk import Workspace, command, environment, leftovers, snapshot


@pytest.fixture
def applied(own_ws: Workspace) -> Workspace:
    """A workspace with the profile `plain`, of a distribution that may be changed."""
    own_ws.apply("plain")
    return own_ws


def flip(file: Path, at: float) -> None:
    """Change one byte in place, at this fraction of the file."""
    data = bytearray(file.read_bytes())
    data[int(len(data) * at)] ^= 0x40
    file.chmod(0o644)
    with file.open("r+b") as out:
        out.write(data)


@pytest.mark.parametrize("at", [0.1, 0.3, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("suffix", [".pack", ".idx"])
def test_a_changed_byte_in_the_cache(own_ws: Workspace, at: float, suffix: str) -> None:
    (file,) = (own_ws.made.cache / "git" / "clock").rglob(f"*{suffix}")
    flip(file, at)
    shutil.rmtree(own_ws.made.cache / "stacks")  # else the stack need not be built again, and the base not be read
    message = own_ws.refused(3, "apply", "--profile", "full")
    assert str(own_ws.made.cache / "git" / "clock") in message
    assert leftovers(own_ws.folder) == []


@pytest.mark.parametrize("suffix", [".pack", ".idx"])
def test_a_changed_byte_in_the_cache_that_no_patch_meets(own_ws: Workspace, suffix: str) -> None:
    """The stack is remembered: only the copy into the workspace reads the base."""
    (file,) = (own_ws.made.cache / "git" / "clock").rglob(f"*{suffix}")
    flip(file, 0.5)
    message = own_ws.refused(3, "apply", "--profile", "full")
    assert str(own_ws.made.cache / "git" / "clock") in message
    assert leftovers(own_ws.folder) == []


def test_a_changed_byte_in_a_remembered_stack_is_computed_again(own_ws: Workspace) -> None:
    for file in (own_ws.made.cache / "stacks").rglob("*.pack"):
        flip(file, 0.5)
    own_ws.apply()
    own_ws.assert_healthy()


def test_an_untracked_file_in_the_way(applied: Workspace) -> None:
    file = applied.folder / "greeter/greeter/manners.py"
    file.write_text("mine\n")
    assert str(file) in applied.refused(5, "apply", "--profile", "full")


def test_an_edit_in_the_last_tree_stops_the_first(applied: Workspace) -> None:
    file = applied.folder / "clock/clock/tick.py"
    file.write_text("mine\n")
    assert str(file) in applied.refused(5, "apply", "--profile", "full")


PATCH = "patches/greeter/v1/loud/0003-feature-loud.patch"
BROKEN: dict[str, tuple[int, str, str]] = {
    "wrong-preimage": (4, "index ", "index 0123456789012345678901234567890123456789.."),
    "shifted-hunk": (4, "@@ -12,", "@@ -13,"),
    "no-author": (2, "From: patchctl <patchctl@localhost>\n", ""),
    "no-date": (2, "Date: Sat, 21 Nov 2026 00:00:00 +0000\n", ""),
    "changed-line": (4, "+    return LOUD * hello(name).upper()", "+    return 2 * hello(name).upper()"),
    "changed-context": (4, " def shout(name):", " def shout(who):"),
}


def refused_patch(ws: Workspace, code: int, text: bytes, name: str = PATCH) -> str:
    """The message of an apply with this text as the patch file; it names the file."""
    (ws.made.root / name).write_bytes(text)
    shutil.rmtree(ws.made.root / "manifests/locks")
    message = ws.refused(code, "apply", "--profile", "full")
    assert name in message
    return message


def line_of(message: str, name: str = PATCH) -> int:
    """The line that a message names, as FILE:LINE."""
    rest = message.partition(f"{name}:")[2]
    return int(rest.partition(":")[0])


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_patch(applied: Workspace, fault: str) -> None:
    code, old, new = BROKEN[fault]
    text = (applied.made.root / PATCH).read_text()
    if fault == "wrong-preimage":
        line = next(row for row in text.splitlines() if row.startswith("index "))
        text = text.replace(line, new + line.partition("..")[2])
    elif fault == "shifted-hunk":
        line = next(row for row in text.splitlines() if row.startswith("@@ "))
        start = int(line[4:].partition(",")[0])
        text = text.replace(line, line.replace(f"-{start},", f"-{start + 1},").replace(f"+{start},", f"+{start + 1},"))
    else:
        assert text.count(old) == 1
        text = text.replace(old, new)
    message = refused_patch(applied, code, text.encode())
    if fault not in ("no-author", "no-date"):
        assert line_of(message) > 10


def test_repeated_context_is_not_guessed_at(applied: Workspace) -> None:
    """The lines of the hunk stand in the file twice; the numbers name the wrong copy."""
    file = applied.made.root / "patches/clock/v2/step/0001-feature-step.patch"
    text = file.read_text()
    line = next(row for row in text.splitlines() if row.startswith("@@ "))
    rest = text.partition(line + "\n")[2]
    moved = "@@ -2,3 +2,4 @@\n \n+# here\n \n def tick(count):\n"
    assert rest
    name = "patches/clock/v2/step/0001-feature-step.patch"
    message = refused_patch(applied, 4, text.replace(line + "\n" + rest, moved).encode(), name)
    assert line_of(message, name) > 10


def test_carriage_returns(applied: Workspace) -> None:
    text = (applied.made.root / PATCH).read_bytes()
    assert "CR" in refused_patch(applied, 2, text.replace(b"\n", b"\r\n"))


def test_no_hunk(applied: Workspace) -> None:
    text = (applied.made.root / PATCH).read_bytes()
    refused_patch(applied, 2, text.partition(b"diff --git")[0])
    refused_patch_again = text.partition(b"@@ ")[0]
    (applied.made.root / PATCH).write_bytes(refused_patch_again)
    assert PATCH in applied.refused(2, "apply", "--profile", "full")


@contextlib.contextmanager
def holding(lock: Path) -> Iterator[None]:
    """The lock, held by this process as another run would."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def test_two_runs_at_once(applied: Workspace) -> None:
    with holding(applied.folder / ".patchctl/lock"):
        for verb in (("apply", "--profile", "full"), ("revert",)):
            message = applied.refused(6, *verb)
            assert "another run holds the workspace" in message
        applied.good("status")
        applied.good("apply", "--profile", "full", "--dry-run")
    applied.apply("full")


def test_many_runs_at_once(small: Made, tmp_path: Path) -> None:
    """Real processes: one works, the others are told so, and the result is whole."""
    ws = Workspace(small, tmp_path / "ws")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    runs = [
        subprocess.Popen(
            command(small, "apply", "--profile", profile, "--workspace", str(ws.folder)),
            env=environment(small),
            **quiet,
        )
        for profile in ("full", "plain", "full", "plain")
    ]
    codes = []
    for run in runs:
        _, error = run.communicate(timeout=120)
        codes.append(run.returncode)
        assert run.returncode in (0, 6), error
    assert 0 in codes
    ws.assert_healthy()
    assert ws.run("status").returncode == 0


def test_a_lock_that_is_a_link(applied: Workspace, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("kept\n")
    lock = applied.folder / ".patchctl/lock"
    lock.unlink()
    lock.symlink_to(target)
    assert str(lock) in applied.refused(2, "apply", "--profile", "full")
    assert target.read_text() == "kept\n"


def test_our_own_folder_that_is_a_link(ws: Workspace, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    ws.folder.mkdir()
    (ws.folder / ".patchctl").symlink_to(elsewhere)
    assert ".patchctl" in ws.refused(2, "apply", "--profile", "full")
    assert list(elsewhere.iterdir()) == []


def test_our_own_folder_that_is_a_file(ws: Workspace) -> None:
    ws.folder.mkdir()
    (ws.folder / ".patchctl").write_text("a file\n")
    for verb in (("apply", "--profile", "full"), ("revert",), ("status",)):
        ws.refused(2, *verb)


def test_a_tree_that_is_a_link(ws: Workspace, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    ws.folder.mkdir()
    (ws.folder / "greeter").symlink_to(elsewhere)
    done = ws.run("apply", "--profile", "full")
    assert done.returncode == 5 and list(elsewhere.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
def test_a_full_disk(big: Made, tmp_path: Path) -> None:
    """Refused without a traceback; with more room, the next run ends it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        ws = Workspace(big, disk / "ws")
        sizes = ("400k", "600k", "900k", "1200k", "1600k")
        for size in sizes:
            subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)
            done = ws.run("apply", "--profile", "full")
            assert done.returncode == 7, (size, done.stdout, done.stderr)
            assert "No space left" in done.stderr and "Traceback" not in done.stderr, done.stderr
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        ws.apply()
        ws.assert_healthy()
        whole = Workspace(big, tmp_path / "whole")
        whole.apply()
        assert ws.trees() == whole.trees()
    finally:
        subprocess.run(["umount", str(disk)], check=False)


def test_a_limit_on_file_sizes(small: Made, tmp_path: Path) -> None:
    """A quota met in the middle: what was written is whole, and the next run ends it."""
    ws = Workspace(small, tmp_path / "ws")
    line = command(small, "apply", "--profile", "full", "--workspace", str(ws.folder))
    limited = ["sh", "-c", 'ulimit -f 1; trap "" XFSZ; exec "$@"', "sh", *line]
    done = subprocess.run(limited, env=environment(small), capture_output=True, text=True, check=False)
    assert done.returncode == 7 and "Traceback" not in done.stderr, done.stderr
    assert ws.trees() == {}
    ws.apply()
    ws.assert_healthy()


@pytest.mark.parametrize(
    "words", [["status"], ["verify"], ["install", "--python", sys.executable, "--dry-run"]], ids=lambda w: w[0]
)
def test_a_disk_without_room_is_no_fault_of_a_tree(applied: Workspace, words: list[str]) -> None:
    """git is asked by a file in the folder for temporary files: where none can be written, nothing is known of the trees."""
    line = command(applied.made, *words, "--workspace", str(applied.folder))
    full = ["sh", "-c", 'ulimit -f 1; trap "" XFSZ; exec "$@"', "sh", *line]
    done = subprocess.run(full, env=environment(applied.made), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (7, ""), done.stdout + done.stderr
    assert "File too large" in done.stderr and "free some space" in done.stderr, done.stderr


def test_a_workspace_that_cannot_be_made(small: Made, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ws = Workspace(small, tmp_path / "file" / "ws")
    done = ws.run("apply", "--profile", "full")
    assert done.returncode == 2 and "file: this has to be a folder and is a file" in done.stderr, done.stderr


def test_user_data_beside_the_trees_is_not_touched(applied: Workspace) -> None:
    (applied.folder / "data").mkdir()
    (applied.folder / "data/model.bin").write_bytes(b"\0" * 10)
    before = snapshot(applied.folder / "data")
    applied.apply("full")
    applied.good("revert")
    assert snapshot(applied.folder / "data") == before
    assert git(applied.folder / "greeter", "status", "--porcelain") == ""
