"""A damaged cache, a repository that git cannot use, folders that cannot be written, locks of another git: found before
anything is changed, with the documented exit code and a way out."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from distribution import Made, git
from on_disk import Workspace, command, copy_of, environment, leftovers, snapshot
from test_killed import copied, counted

from patchctl.git.catfile import ObjectReader
from patchctl.git.objects import Files, TreeBuilder
from patchctl.git.pack import PackWriter

pytestmark = pytest.mark.heavy("every file of a workspace damaged in turn")

WITHOUT_POWERS = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]


def base_of(made: Made, name: str = "shape") -> Path:
    [repo] = (made.cache / "git" / name).glob("*.git")
    return repo


def pack_in(folder: Path) -> Path:
    [pack] = folder.glob("*.pack")
    pack.chmod(0o644)
    pack.with_suffix(".idx").chmod(0o644)
    return pack


def pack_gone(repo: Path) -> None:
    pack_in(repo / "objects/pack").unlink()


def index_gone(repo: Path) -> None:
    pack_in(repo / "objects/pack").with_suffix(".idx").unlink()


def flipped_and_mended(repo: Path) -> None:
    """One bit of a file's content, and the digests of pack and index made right again."""
    pack = pack_in(repo / "objects/pack")
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 4
    data[-20:] = hashlib.sha1(data[:-20]).digest()
    pack.write_bytes(data)
    index = bytearray(pack.with_suffix(".idx").read_bytes())
    index[-40:-20] = data[-20:]
    index[-20:] = hashlib.sha1(index[:-20]).digest()
    pack.with_suffix(".idx").write_bytes(index)


def forged(repo: Path) -> None:
    """A pack that is whole in itself, in which one id names another content."""
    with ObjectReader(repo) as reader:
        commit = repo.name.removesuffix(".git")
        _, text = reader.read(commit)
        files: Files = reader.files(text[5:45].decode())
        folders: dict[str, bytes] = {}
        TreeBuilder(files).write(folders)
        writer = PackWriter()
        writer.add_known(files[b"shape/turn"].id, "blob", b"evil\n")
        for _, data in reader.blobs(files, sorted(files)):
            writer.add("blob", data)
    for oid, data in folders.items():
        writer.add_known(oid, "tree", data)
    writer.add("commit", text)
    pack = pack_in(repo / "objects/pack")
    pack.unlink()
    pack.with_suffix(".idx").unlink()
    writer.write(pack.parent)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "pack-gone": pack_gone,
    "index-gone": index_gone,
    "flipped-and-mended": flipped_and_mended,
    "forged": forged,
}


@pytest.fixture
def made(shapes: Made, tmp_path: Path) -> Made:
    """`shapes` with results that are remembered, to be damaged."""
    Workspace(shapes, tmp_path / "remembered").apply("full")
    return copy_of(shapes, tmp_path)


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_first_apply_from_a_damaged_cache(made: Made, tmp_path: Path, kind: str) -> None:
    ws = Workspace(made, tmp_path / "ws")
    DAMAGE[kind](base_of(made))
    message = ws.refused(3, "apply", "--profile", "full")
    assert "fetch --refresh" in message and not ws.folder.exists()
    made.good("fetch", "--profile", "full", "--refresh")
    ws.apply("full")
    ws.assert_healthy()


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_switch_over_a_damaged_cache(made: Made, tmp_path: Path, kind: str) -> None:
    ws = Workspace(made, tmp_path / "ws")
    ws.apply("plain")
    DAMAGE[kind](base_of(made))
    done = ws.run("apply", "--profile", "full")
    assert done.returncode in (0, 3), done.stderr  # the tree has what the cache lacks; or nothing began
    if done.returncode == 3:
        assert "fetch --refresh" in done.stderr
        assert ws.json("status")["clean"]
        made.good("fetch", "--profile", "full", "--refresh")
    ws.apply("full")
    ws.assert_healthy()
    ws.good("revert")


def objects_in(pack: Path, repo: Path) -> dict[str, tuple[str, bytes]]:
    """What a pack holds, as (kind, content) by id, read from a repository that has it whole."""
    with pack.with_suffix(".idx").open("rb") as index:
        shown = subprocess.run(["git", "show-index"], stdin=index, capture_output=True, text=True, check=True).stdout
    with ObjectReader(repo) as reader:
        return {oid: reader.read(oid) for oid in (line.split()[1] for line in shown.splitlines())}


def rewritten(pack: Path, objects: dict[str, tuple[str, bytes]]) -> None:
    """Put these objects in the place of a pack's, under its name, with right digests."""
    writer = PackWriter()
    for oid, (kind, data) in objects.items():
        writer.add_known(oid, kind, data)
    pack.unlink()
    pack.with_suffix(".idx").unlink()
    made = writer.write(pack.parent)
    assert made is not None
    made.with_suffix(".idx").rename(pack.with_suffix(".idx"))
    made.rename(pack)


def test_a_forged_result_is_computed_again(made: Made, tmp_path: Path) -> None:
    """The pack in which a stack's objects are remembered: whole in itself, with another file in it."""
    ws = Workspace(made, tmp_path / "ws")
    ws.apply("plain")
    shutil.rmtree(made.cache / "stacks")
    Workspace(made, tmp_path / "whole").apply("full")
    [pack] = (made.cache / "stacks").glob("*/*.pack")
    objects = objects_in(pack, tmp_path / "whole/shape/.git")
    rewritten(pack, {oid: (kind, b"evil\n" if kind == "blob" else data) for oid, (kind, data) in objects.items()})
    before = ws.trees()
    done = ws.run("apply", "--profile", "full")
    assert done.returncode == 3 and "fetch --refresh" in done.stderr, done.stderr
    assert ws.trees() == before and leftovers(ws.folder) == []
    ws.apply("full")
    ws.assert_healthy()


def test_damage_in_the_tree_is_mended_from_the_cache(made: Made, tmp_path: Path) -> None:
    ws = Workspace(made, tmp_path / "ws")
    ws.apply("plain")
    base = ws.folder / "shape/.git/objects/pack" / pack_in(base_of(made) / "objects/pack").name
    objects = objects_in(base, base_of(made))
    rewritten(base, {oid: found for oid, found in objects.items() if found[1] != b"a file\n"})
    ws.apply("full")
    ws.assert_healthy()


def test_damage_of_what_is_there_does_not_bar_the_way_back(shapes: Made, tmp_path: Path) -> None:
    ws, whole = (Workspace(shapes, tmp_path / name) for name in ("ws", "whole"))
    for one in (ws, whole):
        one.apply("full")
    for pack in (ws.folder / "shape/.git/objects/pack").glob("*.pack"):
        objects = objects_in(pack, whole.folder / "shape/.git")
        rewritten(pack, {oid: found for oid, found in objects.items() if found[1] != b"IN = 2\n"})
    ws.good("revert")
    whole.good("revert")
    assert ws.trees() == whole.trees()


@pytest.mark.parametrize("verb", ["apply", "revert"])
def test_a_killed_run_whose_end_is_damaged_goes_back(shapes: Made, tmp_path: Path, verb: str) -> None:
    plain, whole = Workspace(shapes, tmp_path / "plain"), Workspace(shapes, tmp_path / "whole")
    plain.apply("plain")
    whole.apply("full")
    before, counter = plain.trees(), tmp_path / "count"
    had = set((plain.folder / "shape/.git/objects/pack").glob("*.pack"))
    full = ("apply", "--profile", "full")
    assert counted(copied(plain, tmp_path / "first"), full, 0, counter) == 0
    after = int(counter.read_text().split()[1])
    for at in (3, after // 2, after - 8):
        ws = copied(plain, tmp_path / f"ws{at}")
        assert counted(ws, full, -at, counter) == -signal.SIGKILL
        [pack] = (
            p for p in (ws.folder / "shape/.git/objects/pack").glob("*.pack") if p.name not in {h.name for h in had}
        )
        objects = objects_in(pack, whole.folder / "shape/.git")
        blob = next(oid for oid, (_, data) in objects.items() if data == b"IN = 2\n")
        rewritten(pack, {oid: found for oid, found in objects.items() if oid != blob})
        out = ws.good(*(("revert",) if verb == "revert" else ("apply", "--profile", "plain")))
        assert "took an interrupted apply back first" in out
        assert leftovers(ws.folder) == []
        if verb == "apply":
            assert ws.trees() == before and ws.json("status")["clean"]


def test_a_first_apply_that_was_killed_and_is_damaged_is_taken_away(shapes: Made, tmp_path: Path) -> None:
    whole = Workspace(shapes, tmp_path / "whole")
    whole.apply("full")
    ws, counter = Workspace(shapes, tmp_path / "ws"), tmp_path / "count"
    assert counted(ws, ("apply", "--profile", "full"), -20, counter) == -signal.SIGKILL
    packs = [*ws.folder.rglob("*.pack")]
    for pack in packs:
        objects = objects_in(pack, whole.folder / "shape/.git")
        rewritten(pack, {oid: found for oid, found in objects.items() if found[1] != b"IN = 2\n"})
    (ws.folder / "shape/mine.txt").write_text("mine\n")
    out = ws.good("revert")
    assert "took an interrupted apply back first" in out
    assert set(ws.trees()) == {"shape", "shape/mine.txt"}
    (ws.folder / "shape/mine.txt").unlink()
    ws.apply("full")
    ws.assert_healthy()


LOCKS = ["index.lock", "HEAD.lock"]


@pytest.mark.parametrize("lock", LOCKS)
@pytest.mark.parametrize("killed", [False, True])
def test_the_lock_of_another_git_is_waited_for_and_never_removed(
    shapes: Made, tmp_path: Path, lock: str, killed: bool
) -> None:
    ws = Workspace(shapes, tmp_path / "ws")
    ws.apply("plain")
    if killed:
        assert counted(ws, ("apply", "--profile", "full"), -9, tmp_path / "count") == -signal.SIGKILL
    file = ws.folder / "shape/.git" / lock
    file.write_text("of another git\n")
    trees = ws.trees()
    for verb in (("apply", "--profile", "full"), ("revert",)):
        done = ws.run(*verb)
        assert done.returncode == 5 and str(file) in done.stderr and "patchctl repair" in done.stderr
        assert file.read_text() == "of another git\n" and ws.trees() == trees
    file.unlink()
    ws.apply("full")
    ws.assert_healthy()


def test_a_lock_that_goes_in_time_is_no_refusal(shapes: Made, tmp_path: Path) -> None:
    ws = Workspace(shapes, tmp_path / "ws")
    ws.apply("plain")
    file = ws.folder / "shape/.git/index.lock"
    with subprocess.Popen(
        [sys.executable, "-c", f"import time, os; open({str(file)!r}, 'x'); time.sleep(2.5); os.unlink({str(file)!r})"]
    ):
        while not file.exists():
            time.sleep(0.01)
        ws.apply("full")
    ws.assert_healthy()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give its powers up")
@pytest.mark.parametrize("into", [False, True])
@pytest.mark.parametrize("closed", ["shape", ".git/refs/patchctl", ".git/objects/pack"])
def test_a_folder_that_cannot_be_written_is_named_before_anything_changes(
    shapes: Made, tmp_path: Path, into: bool, closed: str
) -> None:
    checkout = tmp_path / "checkout"
    git(tmp_path, "clone", "--quiet", str(shapes.origins / "shape"), str(checkout))
    ws = Workspace(shapes, tmp_path / "ws")
    ws.apply("plain", *(("--in-place", f"shape={checkout}") if into else ()))
    top = checkout if into else ws.folder / "shape"
    folder = top / closed
    folder.chmod(0o555)
    os.chown(folder, 12345, 12345)
    before = snapshot(top), ws.trees()
    for verb in (("apply", "--profile", "full"), ("revert",)):
        line = command(shapes, verb[0], "--workspace", str(ws.folder), *verb[1:])
        done = subprocess.run(
            [*WITHOUT_POWERS, *line], env=environment(shapes), capture_output=True, text=True, check=False
        )
        if done.returncode == 0:  # what this verb does not change
            assert (verb, closed) == (("revert",), ".git/objects/pack")
            return
        assert done.returncode == 2 and str(folder) in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
        assert (snapshot(top), ws.trees()) == before
        assert not (ws.folder / ".patchctl/journal.json").exists()
    os.chown(folder, 0, 0)
    folder.chmod(0o755)
    ws.apply("full")


def index_corrupt(git_dir: Path) -> None:
    (git_dir / "index").write_bytes(b"DIRC nothing")


def index_a_folder(git_dir: Path) -> None:
    (git_dir / "index").unlink()
    (git_dir / "index").mkdir()


def head_missing(git_dir: Path) -> None:
    (git_dir / "HEAD").unlink()


BROKEN = {"index": index_corrupt, "index-folder": index_a_folder, "head": head_missing}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_repository_that_git_cannot_use(shapes: Made, tmp_path: Path, kind: str) -> None:
    ws = Workspace(shapes, tmp_path / "ws")
    ws.apply("plain")
    BROKEN[kind](ws.folder / "shape/.git")
    for verb in (("apply", "--profile", "full"), ("apply", "--profile", "full", "--stash"), ("revert",)):
        message = ws.refused(5, *verb)
        assert str(ws.folder / "shape/.git") in message and "patchctl repair" in message, message


def test_a_branch_in_the_way_of_the_name(shapes: Made, tmp_path: Path) -> None:
    ws = Workspace(shapes, tmp_path / "ws")
    ws.apply("plain")
    git(ws.folder / "shape", "branch", "patchctl-stash-1/x")
    (ws.folder / "shape/shape/still.py").write_text("MINE = 1\n")
    assert "patchctl-stash-2" in ws.apply("full", "--stash")
    assert git(ws.folder / "shape", "show", "patchctl-stash-2:shape/still.py") == "MINE = 1\n"


SPY = """#!/bin/sh
# Stands before git on PATH and dies in its place, as the kernel would have it, at this command.
case " $* " in *" {command} "*) kill -KILL $$ ;; esac
exec {git} "$@"
"""


@pytest.mark.parametrize("command_of_git", ["cat-file -e", "read-tree"])
def test_a_git_that_is_killed_is_named_and_what_was_begun_ends(
    shapes: Made, tmp_path: Path, command_of_git: str
) -> None:
    checkout = tmp_path / "checkout"
    git(tmp_path, "clone", "--quiet", str(shapes.origins / "shape"), str(checkout))
    ws = Workspace(shapes, tmp_path / "ws")
    spy = tmp_path / "bin/git"
    spy.parent.mkdir()
    spy.write_text(SPY.format(command=command_of_git, git=shutil.which("git")))
    spy.chmod(0o755)
    apply = ("apply", "--profile", "full", "--in-place", f"shape={checkout}")
    done = ws.run(*apply, env={"PATH": f"{spy.parent}:{os.environ['PATH']}"})
    assert done.returncode == 7 and "git was killed (signal 9)" in done.stderr, done.stderr
    ws.good(*apply)
    assert git(checkout, "rev-parse", "refs/patchctl/tip").strip() == ws.state["trees"]["shape"]["tip_commit"]
    ws.good("revert")
    assert git(checkout, "status", "--porcelain") == ""


@pytest.mark.parametrize("at", [2, 6, 9, 12])
def test_a_stash_whose_process_group_is_killed(shapes: Made, tmp_path: Path, at: int) -> None:
    """The git that makes the snapshot dies with it and leaves its lock."""
    ws = Workspace(shapes, tmp_path / "ws")
    ws.apply("plain")
    (ws.folder / "shape/shape/still.py").write_text("MINE = 1\n")
    for name in ("index.patchctl-snapshot", "index.patchctl-snapshot.lock", "index.patchctl-new.lock"):
        (ws.folder / "shape/.git" / name).write_bytes(b"half an index")
    line = command(shapes, "apply", "--stash", "--profile", "full", "--workspace", str(ws.folder))
    trace = ["strace", "-f", "-qq", "-o", "/dev/null", "-P", str(ws.folder / "shape/.git/index.patchctl-snapshot.lock")]
    inject = ["-e", "trace=%file,%desc", "-e", f"inject=%file,%desc:signal=KILL:when={at}"]
    subprocess.run([*trace, *inject, *line], env=environment(shapes), capture_output=True, check=False)
    ws.apply("full", "--stash")
    branches = git(ws.folder / "shape", "for-each-ref", "--format=%(refname:short)", "refs/heads/").split()
    assert "MINE = 1\n" in [git(ws.folder / "shape", "show", f"{b}:shape/still.py") for b in branches]
    ws.assert_healthy()
