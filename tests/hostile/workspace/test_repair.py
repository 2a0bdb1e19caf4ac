"""`patchctl repair`: from whatever state, a clean base of every tree, every file of a person where it was, aside or on a
branch, and the next apply works. A healthy workspace stays as it is."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from distribution import Made, git
from on_disk import Snapshot, Workspace, copy_of, snapshot
from test_damage import BROKEN, objects_in, pack_in, rewritten
from test_killed import copied, counted

pytestmark = pytest.mark.heavy("a matrix of damages and verbs")

FULL = ("apply", "--profile", "full")
MINE = "MINE = 1\n"
COMMITTED, STAGED = "COMMITTED = 1\n", "STAGED = 1\n"


@pytest.fixture
def made(shapes: Made, tmp_path: Path) -> Made:
    return copy_of(shapes, tmp_path)


@pytest.fixture
def ws(made: Made, tmp_path: Path) -> Workspace:
    """A workspace with a person's work in it: on disk, staged, committed, untracked."""
    ws = Workspace(made, tmp_path / "ws")
    ws.apply()
    tree = ws.folder / "shape"
    (tree / "shape/__init__.py").write_text(COMMITTED)
    git(tree, "commit", "-qam", "mine")
    (tree / "shape/still.py").write_text(STAGED)
    git(tree, "add", "shape/still.py")
    (tree / "shape/still.py").write_text(MINE)
    (tree / "shape/turn/mine.txt").write_text(MINE)
    os.mkfifo(tree / "shape/new_fifo")
    return ws


def state_cut(ws: Workspace) -> None:
    file = ws.folder / ".patchctl/state.json"
    file.write_bytes(file.read_bytes()[:100])


def journal_cut(ws: Workspace) -> None:
    (ws.folder / ".patchctl/journal.json").write_text('{"version": 1, "ver')


def both_cut(ws: Workspace) -> None:
    state_cut(ws)
    journal_cut(ws)


def base_damaged(ws: Workspace) -> None:
    base = ws.folder / "shape/.git/objects/pack" / pack_in(cache_of(ws) / "objects/pack").name
    rewritten(base, {o: f for o, f in objects_in(base, cache_of(ws)).items() if f[1] != b"a file\n"})


def tip_damaged(ws: Workspace) -> None:
    base = pack_in(cache_of(ws) / "objects/pack").name
    for pack in (ws.folder / "shape/.git/objects/pack").glob("*.pack"):
        if pack.name != base:
            pack.unlink()


def repository_gone(ws: Workspace) -> None:
    shutil.rmtree(ws.folder / "shape/.git")


def cache_of(ws: Workspace) -> Path:
    return next((ws.made.cache / "git/shape").glob("*.git"))


DAMAGE: dict[str, Callable[[Workspace], None]] = {
    "state": state_cut,
    "journal": journal_cut,
    "state-and-journal": both_cut,
    "base": base_damaged,
    "tip": tip_damaged,
    "repository": repository_gone,
    **{kind: (lambda ws, b=broken: b(ws.folder / "shape/.git")) for kind, broken in BROKEN.items()},  # type: ignore[misc]
}


def kept(ws: Workspace) -> set[str]:
    """Every content that is on disk below the workspace, or on a branch of a repository there."""
    found = set()
    for path in [*ws.folder.rglob("*")]:
        if path.is_file() and not path.is_symlink() and b"\0" not in (data := path.read_bytes()):
            found.add(data.decode("utf-8", "replace"))
    for head in ws.folder.rglob("HEAD"):
        repo = head.parent
        if not (repo / "objects").is_dir() or not (repo / "config").is_file():
            continue
        line = ["git", f"--git-dir={repo}", "for-each-ref", "--format=%(objectname)", "refs/heads/"]
        tips = subprocess.run(line, capture_output=True, text=True, check=False).stdout.split()
        for tip in (*tips, "HEAD", ""):  # "": the index
            for name in ("shape/__init__.py", "shape/still.py"):
                show = ["git", f"--git-dir={repo}", "show", f"{tip}:{name}"]
                found.add(subprocess.run(show, capture_output=True, text=True, check=False).stdout)
    return found


def assert_repaired(ws: Workspace) -> None:
    status = git(ws.folder / "shape", "status", "--porcelain")
    assert {line[:2] for line in status.splitlines()} <= {"??"}, status
    assert ws.json("repair")["healthy"]
    shutil.rmtree(ws.folder / "shape/shape/turn", ignore_errors=True)
    git(ws.folder / "shape", "checkout", "--", ".")
    (ws.folder / "shape/shape/new_fifo").unlink(missing_ok=True)
    for folder in ws.folder.glob("repair-*"):
        shutil.rmtree(folder)
    ws.apply()
    ws.assert_healthy()


def trees_of(ws: Workspace) -> Snapshot:
    return {p: s for p, s in ws.trees().items() if not p.startswith("repair-")}


@pytest.mark.parametrize("kind", DAMAGE)
def test_from_each_damage_to_a_clean_base(ws: Workspace, kind: str) -> None:
    DAMAGE[kind](ws)
    before = ws.everything()
    assert ws.json("repair", "--dry-run")["found"]
    assert ws.everything() == before
    result = ws.json("repair")
    assert [t["outcome"] for t in result["trees"]] == ["base"] and result["found"]
    assert MINE in kept(ws)
    if kind not in ("repository", "index", "index-folder"):  # where these are gone, they are
        assert {COMMITTED, STAGED} <= kept(ws) | {COMMITTED if kind == "head" else MINE}
    assert all(os.path.lexists(place) for place in result["kept"])
    assert_repaired(ws)


def test_a_healthy_workspace_stays_as_it_is(ws: Workspace) -> None:
    before = ws.everything()
    assert "is healthy: nothing was changed" in ws.good("repair")
    assert ws.everything() == before


def test_a_tree_that_nothing_holds_is_moved_aside_whole(ws: Workspace) -> None:
    base_damaged(ws)
    shutil.rmtree(ws.made.cache)
    tree = snapshot(ws.folder / "shape")
    result = ws.json("repair")
    assert [t["outcome"] for t in result["trees"]] == ["aside"]
    aside = snapshot(Path(result["aside"]) / "shape")
    assert {p: s for p, s in aside.items() if not p.startswith(".git")} == {
        p: s for p, s in tree.items() if not p.startswith(".git")
    }
    assert not (ws.folder / "shape").exists()
    ws.apply()
    ws.assert_healthy()


def test_nothing_is_overwritten_by_a_second_repair(ws: Workspace) -> None:
    state_cut(ws)
    first = ws.json("repair")
    (ws.folder / "shape/shape/still.py").write_text("AGAIN = 1\n")
    state_cut(ws)
    second = ws.json("repair")
    assert first["aside"] != second["aside"]
    assert {MINE, "AGAIN = 1\n"} <= kept(ws)


def test_a_stale_lock_goes_aside_and_the_trees_stay(ws: Workspace) -> None:
    (ws.folder / "shape/.git/index.lock").write_text("stale")
    trees = ws.trees()
    result = ws.json("repair")
    assert [s["kind"] for s in result["found"]] == ["lock"] and result["trees"] == []
    assert trees_of(ws) == trees and (Path(result["aside"]) / "shape.git/index.lock").read_text() == "stale"
    assert ws.json("repair")["healthy"]


def test_while_a_git_is_at_work_nothing_is_done(ws: Workspace) -> None:
    lock = ws.folder / "shape/.git/index.lock"
    lock.write_text("live")
    line = ["git", "cat-file", "--batch"]
    with subprocess.Popen(line, cwd=ws.folder / "shape", stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as busy:
        message = ws.refused(5, "repair")
        assert f"process {busy.pid}" in message and lock.read_text() == "live"
        busy.kill()
    ws.good("repair")


def test_no_workspace(made: Made, tmp_path: Path) -> None:
    assert "is no workspace" in Workspace(made, tmp_path / "nothing").refused(2, "repair")


@pytest.mark.parametrize("kind", ["state", "repository", "base"])
@pytest.mark.parametrize("cached", [True, False])
def test_a_checkout_of_somebody_else(made: Made, tmp_path: Path, kind: str, cached: bool) -> None:
    checkout = tmp_path / "checkout"
    git(tmp_path, "clone", "--quiet", "--no-hardlinks", str(made.origins / "shape"), str(checkout))
    original = {p: s for p, s in snapshot(checkout).items() if not p.startswith(".git/")}
    ws = Workspace(made, tmp_path / "ws")
    ws.apply("full", "--in-place", f"shape={checkout}")
    (checkout / "shape/still.py").write_text(MINE)
    own = ws.folder / ".patchctl/into/shape.git"
    if kind == "state":
        state_cut(ws)
    elif kind == "repository":
        shutil.rmtree(own)
    else:
        for pack in (own / "objects/pack").glob("*.pack"):
            objects = objects_in(pack, checkout / ".git")
            rewritten(pack, {o: f for o, f in objects.items() if f[1] != b"a file\n"})
    if not cached:
        shutil.rmtree(made.cache)
    result = ws.json("repair")
    assert [t["outcome"] for t in result["trees"]] == ["base"]  # its own repository has the base too
    assert MINE in kept(ws)
    assert {p: s for p, s in snapshot(checkout).items() if not p.startswith(".git/")} == original
    assert git(checkout, "status", "--porcelain") == "" and git(checkout, "for-each-ref", "refs/patchctl") == ""
    assert ws.json("repair")["healthy"]
    if cached:
        ws.apply("full", "--in-place", f"shape={checkout}")


@pytest.mark.parametrize("at", [-3, -30, -50])
def test_after_a_kill_and_a_lost_journal(shapes: Made, tmp_path: Path, at: int) -> None:
    """The first apply died, and its journal with it: nothing but the trees tells of them."""
    ws, clean = (Workspace(shapes, tmp_path / name) for name in ("ws", "clean"))
    assert counted(ws, FULL, at, tmp_path / "count") == -signal.SIGKILL
    journal_cut(ws)
    result = ws.json("repair")
    assert result["found"][0]["kind"] == "journal"
    clean.apply()
    clean.good("revert")
    for folder in ws.folder.glob("repair-*"):
        shutil.rmtree(folder)
    if result["trees"]:
        assert trees_of(ws) == clean.trees()
    ws.apply()
    ws.assert_healthy()


@pytest.mark.parametrize("kind", ["state-and-journal", "repository", "index-folder"])
def test_killed_itself_it_can_be_run_again(ws: Workspace, tmp_path: Path, kind: str) -> None:
    DAMAGE[kind](ws)
    (ws.folder / "shape/shape/new_fifo").unlink()  # which nobody can copy
    counter = tmp_path / "count"
    whole = copied(ws, tmp_path / "whole")
    assert counted(whole, ("repair",), 0, counter) == 0
    total = int(counter.read_text().split()[0])
    for at in range(3, total, max(1, total // 10)):
        broken = copied(ws, tmp_path / f"at{at}")
        assert counted(broken, ("repair",), at, counter) == -signal.SIGKILL
        broken.good("repair")
        assert MINE in kept(broken)
        assert_repaired(broken)
        shutil.rmtree(broken.folder)
