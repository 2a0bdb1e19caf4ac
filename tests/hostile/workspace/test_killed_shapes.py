"""SIGKILL while a stack makes of a file a folder and of a folder a file, moves, deletes, changes a mode and a binary file, in
a tree of the workspace and in somebody else's checkout: whatever comes next ends as if nothing had happened."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
from distribution import Made, git
from on_disk import Snapshot, Workspace, leftovers, snapshot
from test_killed import copied, counted

pytestmark = pytest.mark.heavy("killed at every operation")

FULL = ("apply", "--profile", "full")
PLAIN = ("apply", "--profile", "plain")
RUNS = {"forward": (PLAIN, FULL), "backward": (FULL, PLAIN), "revert": (FULL, ("revert",))}


def ends(made: Made, folder: Path) -> dict[tuple[str, ...], Snapshot]:
    """The tree after each run that nobody interrupted."""
    found = {}
    for args in (FULL, PLAIN, ("revert",)):
        ws = Workspace(made, folder / "-".join(args))
        ws.apply()
        ws.good(*args)
        found[args] = ws.trees()
    return found


def late(counter: Path, every: int) -> list[int]:
    """Points after the journal, all near the end and each `every`th before."""
    after = int(counter.read_text().split()[1])
    return [-n for n in range(2, after + 1) if n % every == 0 or n > after - 4]


def check_every(made: Made, tmp_path: Path, name: str, every: int) -> None:
    begin, args = RUNS[name]
    good = ends(made, tmp_path / "ends")
    before = Workspace(made, tmp_path / "before")
    before.good(*begin)
    counter = tmp_path / "count"
    assert counted(copied(before, tmp_path / "whole"), args, 0, counter) == 0
    for number, at in enumerate(late(counter, every)):
        ws = copied(before, tmp_path / "ws")
        assert counted(ws, args, at, counter) == -signal.SIGKILL, f"event {at} did not come"
        following = (FULL, ("revert",), PLAIN)[number % 3]
        done = ws.run(*following)
        assert done.returncode == 0, (at, following, done.stderr)
        assert ws.trees() == good[following]
        ws.assert_healthy()
        shutil.rmtree(ws.folder)


@pytest.mark.parametrize("name", RUNS)
def test_killed_late(shapes: Made, tmp_path: Path, name: str) -> None:
    check_every(shapes, tmp_path, name, 12)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_killed_at_every_operation(shapes: Made, tmp_path: Path, name: str) -> None:
    check_every(shapes, tmp_path, name, 1)


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_a_checkout_of_somebody_else(shapes: Made, tmp_path: Path, every: int) -> None:
    pin, checkout = tmp_path / "pin", tmp_path / "place/checkout"
    git(tmp_path, "clone", "--quiet", "--no-hardlinks", str(shapes.origins / "shape"), str(pin))
    ws = Workspace(shapes, tmp_path / "place/ws")
    apply = (*FULL, "--in-place", f"shape={checkout}")
    counter = tmp_path / "count"

    def fresh() -> None:
        shutil.rmtree(tmp_path / "place", ignore_errors=True)
        shutil.copytree(pin, checkout, symlinks=True)

    fresh()
    original = files_of(checkout)
    assert counted(ws, apply, 0, counter) == 0
    patched = files_of(checkout)
    for number, at in enumerate(late(counter, every)):
        fresh()
        assert counted(ws, apply, at, counter) == -signal.SIGKILL, f"event {at} did not come"
        done = ws.run(*(apply, ("revert",))[number % 2])
        assert done.returncode == 0, (at, done.stderr)
        assert files_of(checkout) == (original if number % 2 else patched), at
        assert leftovers(ws.folder) == [] and leftovers(checkout) == []


def files_of(checkout: Path) -> Snapshot:
    return {p: s for p, s in snapshot(checkout).items() if not p.startswith(".git")}


@pytest.mark.parametrize("into", [False, True])
def test_the_tree_is_clean_to_verify_and_status(shapes: Made, tmp_path: Path, into: bool) -> None:
    checkout = tmp_path / "checkout"
    git(tmp_path, "clone", "--quiet", str(shapes.origins / "shape"), str(checkout))
    ws = Workspace(shapes, tmp_path / "ws")
    ws.apply("full", *(("--in-place", f"shape={checkout}") if into else ()))
    done = shapes.patchctl("verify", "--workspace", str(ws.folder))
    assert done.returncode == 0, done.stdout + done.stderr
    assert ws.json("status")["clean"]
    ws.good("revert")
