"""The index that we write is the one that git writes, and every index that says more than paths is left to git."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from patchctl.git.catfile import ObjectReader
from patchctl.git.index import IndexChange, NotPlain, changed, made_anew, summary
from patchctl.git.worktree import WorkTree
from patchctl.workspace.tree_files import TreeFiles

ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@b",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@b",
    "GIT_AUTHOR_DATE": "1700000000 +0000",
    "GIT_COMMITTER_DATE": "1700000000 +0000",
}


def git(top: Path, *args: str, index: Path | None = None) -> str:
    env = {**ENV, "GIT_INDEX_FILE": str(index)} if index else ENV
    return subprocess.run(["git", *args], cwd=top, env=env, check=True, capture_output=True, text=True).stdout


def commit(top: Path) -> str:
    git(top, "add", "-A")
    git(top, "commit", "-qm", "x", "--allow-empty")
    return git(top, "rev-parse", "HEAD").strip()


def edit(top: Path, rng: random.Random) -> None:
    """Some files change, come, go; a folder goes, a file becomes a folder, a file becomes executable."""
    files = sorted(p for p in top.rglob("*") if p.is_file() and ".git" not in p.parts)
    for file in rng.sample(files, min(len(files), 12)):
        file.unlink() if rng.random() < 0.3 else file.write_text(f"{rng.random()}\n")
    for number in range(8):
        file = top / f"a{rng.randrange(4)}" / rng.choice(["x", "x-y", "x.z", "sub/deep/er"]) / f"n{rng.randrange(50)}"
        if not any(p.is_file() for p in file.parents):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{number} {rng.random()}\n")
    shutil.rmtree(top / f"a{rng.randrange(4)}" / "x", ignore_errors=True)
    rng.choice(sorted(p for p in top.rglob("n*") if p.is_file())).chmod(0o755)


@pytest.fixture
def checkout(tmp_path: Path) -> tuple[Path, list[str]]:
    """A work tree whose index git wrote, and six commits."""
    top = tmp_path / "tree"
    top.mkdir()
    git(top, "init", "-q", ".")
    rng = random.Random(11)
    for number in range(60):
        file = top / f"a{number % 4}" / rng.choice(["x", "x-y", "y/z"]) / f"f{number}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{number}\n")
    (top / "link").symlink_to("a0")
    commits = [commit(top)]
    for _ in range(5):
        edit(top, rng)
        commits.append(commit(top))
    return top, commits


def change_of(top: Path, source: str, target: str, files: TreeFiles | None = None) -> IndexChange:
    trees = [git(top, "rev-parse", f"{c}^{{tree}}").strip() for c in (source, target)]
    with ObjectReader(top / ".git") as reader:
        found = reader.changes(*trees)
    files = files or TreeFiles(top)
    return IndexChange(trees[0], found.before, found.after, found.folders, files.entry, files.written)


def cache_of_trees(index: Path) -> bytes:
    data = index.read_bytes()
    at = data.rindex(b"TREE")
    return data[at + 8 : at + 8 + int.from_bytes(data[at + 4 : at + 8], "big")]


def settle(top: Path, commit: str) -> None:
    """The checkout at `commit`, with an index that git wrote a second after the files and that has its cache of trees."""
    git(top, "checkout", "-q", "-f", commit)
    for file in top.rglob("*"):
        if ".git" not in file.parts and not file.is_dir():
            os.utime(file, (1_700_000_000, 1_700_000_000), follow_symlinks=False)
    git(top, "read-tree", "--reset", commit)
    git(top, "update-index", "--refresh")


@pytest.mark.parametrize("step", range(1, 6))
def test_every_byte_that_matters_is_what_git_writes(
    checkout: tuple[Path, list[str]], tmp_path: Path, step: int
) -> None:
    top, commits = checkout
    source, target = commits[0], commits[step]
    settle(top, source)
    index, theirs, ours = top / ".git" / "index", tmp_path / "theirs", tmp_path / "ours"
    before = index.read_bytes()
    git(top, "checkout", "-q", target)  # the files, as a run writes them
    theirs.write_bytes(before)
    git(top, "read-tree", "--reset", target, index=theirs)
    git(top, "update-index", "--refresh", index=theirs)
    index.write_bytes(before)
    os.utime(index, (1_700_000_010, 1_700_000_010))
    data, differing = changed(index, top, change_of(top, source, target))
    ours.write_bytes(data)
    assert differing == []
    listing = ("ls-files", "--stage", "--debug", "-v", "-t")
    assert git(top, *listing, index=ours) == git(top, *listing, index=theirs)
    assert cache_of_trees(ours) == cache_of_trees(theirs)
    assert git(top, "write-tree", index=ours).strip() == git(top, "rev-parse", f"{target}^{{tree}}").strip()
    assert git(top, "diff-index", "--name-only", target, index=ours) == ""


def test_a_file_that_is_not_as_the_tree_says_is_told(checkout: tuple[Path, list[str]]) -> None:
    top, commits = checkout
    settle(top, commits[0])
    change = change_of(top, commits[0], commits[1])
    edited, gone = sorted(change.after)[:2]
    index = top / ".git" / "index"
    before = index.read_bytes()
    git(top, "checkout", "-q", commits[1])
    index.write_bytes(before)
    (top / os.fsdecode(edited)).write_text("a person's\n")
    (top / os.fsdecode(gone)).unlink()
    data, differing = changed(index, top, change)
    assert differing == [edited, gone]
    index.write_bytes(data)
    assert set(git(top, "diff-files", "--name-only").split()) == {os.fsdecode(edited), os.fsdecode(gone)}


def test_an_edit_in_the_second_of_the_old_index_is_not_hidden(checkout: tuple[Path, list[str]]) -> None:
    """Same size, same time as the index has it: only its content tells. git reads such files; an index written later would
    make the time look settled."""
    top, commits = checkout
    settle(top, commits[0])
    change = change_of(top, commits[0], commits[1])
    index = top / ".git" / "index"
    before = index.read_bytes()
    git(top, "checkout", "-q", commits[1])
    stays = {os.fsdecode(p) for p in change.before} ^ set(git(top, "ls-files", "a0", "a1", "a2", "a3").split())
    path = next(p for p in sorted(stays) if f"{p}\0".encode() in before)
    file = top / path
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    status = file.stat()
    raw = bytearray(before[:-20])  # the entry as it would be if the edit had come within the kernel's tick
    at = before.index(f"{path}\0".encode()) - 62
    for place, moment in ((at, status.st_ctime_ns), (at + 8, status.st_mtime_ns)):
        raw[place : place + 8] = (moment // 10**9).to_bytes(4, "big") + (moment % 10**9).to_bytes(4, "big")
    index.write_bytes(bytes(raw) + hashlib.sha1(bytes(raw)).digest())
    os.utime(index, ns=(status.st_mtime_ns, status.st_mtime_ns))
    assert path in git(top, "diff-files", "--name-only").split(), "git is expected to read it"
    data, _ = changed(index, top, change)
    index.write_bytes(data)
    later = status.st_mtime_ns + 5 * 10**9
    os.utime(index, ns=(later, later))
    assert path in git(top, "diff-files", "--name-only").split()


@pytest.mark.parametrize(
    "what", ["assumed", "skipped", "conflict", "intended", "split", "version 4", "damaged", "another tree", "no cache"]
)
def test_an_index_that_says_more_is_left_to_git(checkout: tuple[Path, list[str]], what: str) -> None:
    top, commits = checkout
    settle(top, commits[0])
    change = change_of(top, commits[0], commits[1])
    index = top / ".git" / "index"
    name = git(top, "ls-files").split()[0]
    if what == "assumed":
        git(top, "update-index", "--assume-unchanged", name)
    elif what == "skipped":
        git(top, "update-index", "--skip-worktree", name)
    elif what == "conflict":
        blob = git(top, "rev-parse", f":{name}").strip()
        lines = "".join(f"100644 {blob} {stage}\t{name}\n" for stage in (1, 2, 3))
        git(top, "rm", "-q", "--cached", name)
        subprocess.run(["git", "update-index", "--index-info"], cwd=top, env=ENV, input=lines.encode(), check=True)
    elif what == "intended":
        (top / "new").write_text("x\n")
        git(top, "add", "-N", "new")
    elif what == "split":
        git(top, "update-index", "--split-index")
    elif what == "version 4":
        git(top, "update-index", "--index-version", "4")
    elif what == "damaged":
        index.write_bytes(index.read_bytes().replace(os.fsencode(name), os.fsencode(name[:-1] + "~"), 1))
    elif what == "another tree":
        git(top, "read-tree", commits[2])
    else:
        git(top, "update-index", "--add", "--cacheinfo", f"100644,{git(top, 'rev-parse', f':{name}').strip()},other")
    with pytest.raises(NotPlain):
        changed(index, top, change)
    if what in ("assumed", "conflict"):
        assert summary(index)[0]
    elif what in ("another tree", "no cache"):
        other = git(top, "rev-parse", f"{commits[2]}^{{tree}}").strip()
        assert summary(index) == (False, other if what == "another tree" else None)
    else:
        with pytest.raises(NotPlain):
            summary(index)


def test_what_is_staged_is_not_taken_for_the_commit(checkout: tuple[Path, list[str]]) -> None:
    top, commits = checkout
    settle(top, commits[0])
    index, tree = top / ".git" / "index", git(top, "rev-parse", f"{commits[0]}^{{tree}}").strip()
    assert summary(index) == (False, tree)
    name = git(top, "ls-files").split()[0]
    (top / name).write_text("staged\n")
    git(top, "add", name)
    assert summary(index) == (False, None)
    work = WorkTree(top / ".git", top)
    assert work.staged(commits[0], tree) == [os.fsencode(name)]
    git(top, "reset", "-q", "--", name)
    assert work.staged(commits[0], tree) == []


def test_an_index_made_anew_is_the_one_that_git_makes(checkout: tuple[Path, list[str]]) -> None:
    top, commits = checkout
    git(top, "read-tree", "--reset", commits[-1])
    git(top, "update-index", "--refresh")
    tree = git(top, "rev-parse", f"{commits[-1]}^{{tree}}").strip()
    with ObjectReader(top / ".git") as reader:
        found = reader.changes(None, tree)
    data, differing = made_anew(
        top, IndexChange("", found.before, found.after, found.folders, TreeFiles(top).entry, {})
    )
    assert differing == []
    own = top / ".git/own"
    own.write_bytes(data)
    for asked in (("ls-files", "--stage"), ("write-tree",), ("fsck", "--full", "--strict")):
        assert git(top, *asked, index=own) == git(top, *asked)
    assert git(top, "write-tree", index=own).strip() == tree
    assert git(top, "diff-files", "--name-only", index=own) == ""
