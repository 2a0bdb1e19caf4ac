"""Fifty runs that begin at the same moment, on one workspace, one cache and one distribution.

Each is a process that has everything imported and waits at a FIFO; the FIFO's end lets all of them go. Every one ends with 0 or is
told that another is at work (6); what is there afterwards is what some order of them gives, and nobody left anything.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from distribution import Made
from on_disk import Snapshot, Workspace, copy_of, environment, git, leftovers, snapshot

from patchctl.manifest.files import exclusive_writer

pytestmark = pytest.mark.heavy("fifty runs at once")

PROCESSES = 50
# Says that it is ready by opening the FIFO for reading, which waits for a writer; goes when the last writer is gone.
WAITING = """
import sys
from patchctl.__main__ import run
import patchctl.workspace.apply, patchctl.workspace.status, patchctl.stack.plan, patchctl.bundle.create
with open(sys.argv[1]) as gate, open(sys.argv[2], "w"):
    gate.read()
sys.exit(run(sys.argv[3:]))
"""


def at_once(made: Made, folder: Path, lines: Sequence[Sequence[str]]) -> list[tuple[Sequence[str], int, str]]:
    """Run every line in a process of its own, all from the same moment on; (line, exit code, standard error) of each."""
    gate, ready = folder / "gate", folder / "ready"
    os.mkfifo(gate)
    os.mkfifo(ready)
    start = [f"--root={made.root}", f"--cache={made.cache}"]
    env = {**environment(made), "PIP_FIND_LINKS": str(made.index)}
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", WAITING, str(gate), str(ready), *start, *line],
            env=env,
            cwd=folder,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for line in lines
    ]
    try:
        held = os.open(gate, os.O_WRONLY)  # until the first one reads
        seen = os.open(ready, os.O_RDONLY)
        _wait_for(len(lines), ready, runs)
        os.close(held)
        os.close(seen)
        return [(line, run.wait(300), run.communicate()[1]) for line, run in zip(lines, runs, strict=True)]
    finally:
        for run in runs:
            run.kill()
            run.wait()


def _wait_for(count: int, ready: Path, runs: Sequence[subprocess.Popen[str]]) -> None:
    """Until so many processes have the FIFO open."""
    while True:
        assert all(run.poll() is None for run in runs)
        opened = 0
        for run in runs:
            try:
                opened += any(os.readlink(f.path) == str(ready) for f in os.scandir(f"/proc/{run.pid}/fd"))
            except FileNotFoundError:
                continue
        if opened == count:
            return


def all_documented(ended: Sequence[tuple[Sequence[str], int, str]], allowed: Sequence[int] = (0, 6)) -> Counter[str]:
    """How many of each verb ended with 0; fails on any other code than those allowed, and on a traceback."""
    wrong = [
        (" ".join(line), code, error[-1500:])
        for line, code, error in ended
        if code not in allowed or "Traceback" in error
    ]
    assert wrong == []
    return Counter(line[0] for line, code, _ in ended if code == 0)


@pytest.fixture
def made(small: Made, tmp_path: Path) -> Made:
    return copy_of(small, tmp_path)


def states(made: Made, folder: Path) -> dict[str, Snapshot]:
    """What the trees are after each of the runs alone: every order ends in one of them."""
    found = {}
    whole = Workspace(made, folder / "alone")
    for name, line in {
        "full": ("apply", "--profile", "full"),
        "plain": ("apply", "--profile", "plain"),
        "less": ("apply", "--profile", "full", "--without", "polite"),
        "base": ("revert",),
    }.items():
        whole.good(*line)
        found[name] = whole.trees()
    return found


def test_applying_to_a_workspace_that_is_not_there(made: Made, tmp_path: Path) -> None:
    """The cache is empty, too: all of them fetch, and build the same stack."""
    shutil.rmtree(made.cache)
    ws = Workspace(made, tmp_path / "deep" / "ws")
    line = ("apply", "--profile", "full", "--workspace", str(ws.folder))
    good = all_documented(at_once(made, tmp_path, [line] * PROCESSES))
    assert good["apply"] >= 1
    ws.assert_healthy()
    assert ws.trees() == states(made, tmp_path)["full"]
    assert leftovers(tmp_path / "deep") == [] and list((made.cache / "tmp").iterdir()) == []
    assert [p.name for p in (made.cache / "stacks").iterdir() if p.name.startswith(".")] == []


def test_every_verb_at_once(made: Made, tmp_path: Path) -> None:
    ws = Workspace(made, tmp_path / "ws")
    ws.apply("plain")
    (ws.folder / "greeter/notes.txt").write_text("mine\n")  # untracked: in nobody's way
    (ws.folder / "data").mkdir()
    (ws.folder / "data/weights.bin").write_bytes(os.urandom(1000))
    mine = {p: s for p, s in snapshot(ws.folder).items() if p.startswith("data") or p.endswith("notes.txt")}
    wanted = states(made, tmp_path)
    before = snapshot(made.root)
    at = ("--workspace", str(ws.folder))
    mixed = [
        ("apply", "--profile", "full", *at),
        ("apply", "--profile", "plain", *at),
        ("apply", "--profile", "full", "--without", "polite", *at),
        ("revert", *at),
        ("fetch", "--profile", "full", "--refresh"),
        ("lock",),
        ("list",),
        ("export", "greeter", "--check"),
        ("bundle", "create", "--profile", "full", "--out", str(tmp_path / "out.tar")),
        ("edit", "clock", "--dir", str(tmp_path / "edit-{n}")),
    ]
    lines = [[word.format(n=n) for word in mixed[n % len(mixed)]] for n in range(PROCESSES)]
    good = all_documented(at_once(made, tmp_path, lines))
    for verb in ("fetch", "lock", "list", "export", "bundle", "edit"):
        assert good[verb] == PROCESSES // len(mixed), f"{verb} needs no workspace, and nobody holds what it needs"
    assert good["apply"] + good["revert"] >= 1
    trees = {p: s for p, s in ws.trees().items() if p not in mine}
    assert trees in list(wanted.values())
    assert {p: snapshot(ws.folder)[p] for p in mine} == mine
    for name in ("greeter", "clock"):
        assert git(ws.folder / name, "fsck", "--full", "--strict", "--no-dangling") == ""
    assert leftovers(ws.folder) == [] and list((made.cache / "tmp").iterdir()) == []
    assert snapshot(made.root) == before
    made.good("bundle", "verify", str(tmp_path / "out.tar"))
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []
    ws.good("verify")


def test_looking_while_others_write(made: Made, tmp_path: Path) -> None:
    """status and verify hold nothing: what they see may be between two states (1), and is never a fault."""
    ws = Workspace(made, tmp_path / "ws")
    ws.apply("plain")
    at = ("--workspace", str(ws.folder))
    mixed = [
        ("status", *at),
        ("verify", *at),
        ("apply", "--profile", "full", *at),
        ("revert", *at),
        ("status", "--json", *at),
    ]
    ended = at_once(made, tmp_path, [mixed[n % len(mixed)] for n in range(PROCESSES)])
    all_documented([e for e in ended if e[0][0] in ("apply", "revert")])
    all_documented([e for e in ended if e[0][0] not in ("apply", "revert")], allowed=(0, 1))
    ws.good("status")
    ws.good("verify")
    assert leftovers(ws.folder) == []


def test_exporting_to_one_stack_at_once(made: Made, tmp_path: Path) -> None:
    """Fifty exports of the same commit: the series is there once, whole."""
    edit = tmp_path / "edit"
    made.good("edit", "clock", "--dir", str(edit))
    tick = edit / "clock/tick.py"
    tick.write_text(tick.read_text() + "\n\ndef tock(count):\n    return count - 1\n")
    git(
        edit,
        "commit",
        "-qam",
        git(edit, "log", "-1", "--format=%B").replace("step\n", "tock\n").replace("size", "sign"),
    )
    copies = []
    for n in range(PROCESSES):
        copies.append(tmp_path / f"edit-{n}")
        shutil.copytree(edit, copies[-1], symlinks=True)
    lines = [("export", "clock", "--dir", str(copy)) for copy in copies]
    ended = at_once(made, tmp_path, lines)
    assert all_documented(ended, allowed=(0, 5, 6))["export"] >= 1  # 5: the patch files are another's by now
    folder = made.root / "patches/clock/v2"
    assert leftovers(made.root) == [] and sorted(p.name[:4] for p in folder.glob("*/*.patch")) == ["0001", "0002"]
    made.good("lock")
    made.good("export", "clock", "--check")


def test_writers_of_patches_take_turns(made: Made, tmp_path: Path) -> None:
    """While one holds the distribution no other changes what it has read; who only looks is let in."""
    edit = tmp_path / "edit"
    made.good("edit", "clock", "--dir", str(edit))
    made.good("export", "clock", "--mbox", str(tmp_path / "mails"))
    lines = [
        ("export", "clock", "--dir", str(edit)),
        ("import", str(tmp_path / "mails"), "--stack", "clock/mine"),
        ("new", "chime", "--stack", "clock", "--dir", str(tmp_path / "new")),
    ]
    before = snapshot(made.root)
    with exclusive_writer(made.root):
        for line in lines:
            done = made.patchctl(*line)
            assert done.returncode == 6 and "another run is writing patches" in done.stderr, done.stderr
        made.good("export", "clock", "--check", "--dir", str(edit))
        made.good(*lines[1], "--dry-run")
        made.good("verify", "--static")
    assert snapshot(made.root) == before and not (tmp_path / "new").exists()
    made.good(*lines[0])
    made.good(*lines[2])


def test_writing_one_lock_at_once(made: Made, tmp_path: Path) -> None:
    locks = sorted(p for p in (made.root / "manifests/locks").rglob("*") if p.is_file())
    wanted = snapshot(made.root)
    assert locks
    for lock in locks:
        lock.write_bytes(lock.read_bytes()[:100])  # as a full disk left it
    good = all_documented(at_once(made, tmp_path, [("lock",)] * PROCESSES))
    assert good["lock"] == PROCESSES and snapshot(made.root) == wanted
