"""The reader of objects believes nothing: a byte changed anywhere in a pack or a loose object never reaches the caller."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from engine_tools import Repo

from patchctl.delta import apply_delta
from patchctl.errors import SourceMismatch
from patchctl.git import catfile
from patchctl.git.catfile import ObjectReader
from patchctl.git.objects import TreeEntry, object_id

CONTENTS = {
    b"folder/%d" % i: (0o100644, random.Random(i).randbytes(200 + 300 * (i % 5)) + b"text\n" * 40) for i in range(8)
}


# Packs as git writes them by default, with deltas that name their base by id, and with an index that only git reads.
FORMS = {
    "offsets": ("repack.useDeltaBaseOffset=true", "pack.indexVersion=2"),
    "ids": ("repack.useDeltaBaseOffset=false", "pack.indexVersion=2"),
    "old index": ("repack.useDeltaBaseOffset=true", "pack.indexVersion=1"),
}


@pytest.fixture(scope="module", params=FORMS)
def packed(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> tuple[Repo, str, Path]:
    """A repository whose objects are all in one pack, deltas included; its commit; the pack."""
    repo = Repo(tmp_path_factory.mktemp("catfile") / "repo")
    later = CONTENTS | {b"folder/0": (0o100644, CONTENTS[b"folder/0"][1] + b"more\n")}
    commits = repo.history([CONTENTS, later])
    settings = [word for setting in FORMS[request.param] for word in ("-c", setting)]
    repo.git(*settings, "repack", "-q", "-a", "-d", "-f")
    repo.git("prune-packed")
    (pack,) = (repo.dir / "objects" / "pack").glob("*.pack")
    return repo, commits[1], pack


@pytest.fixture(autouse=True)
def no_tree_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process remembers the trees that it has verified; each test here begins as a new process would."""
    monkeypatch.setattr(catfile, "_TREES", {})


def everything(repo: Path, commit: str) -> dict[bytes, bytes]:
    with ObjectReader(repo) as reader:
        kind, data = reader.read(commit)
        assert kind == "commit"
        files = reader.files(data[5:45].decode())
        return dict(reader.blobs(files, files))


def is_read_by_us(repo: Repo) -> bool:
    (index,) = (repo.dir / "objects" / "pack").glob("*.idx")
    return index.read_bytes().startswith(b"\xfftOc")


def test_a_whole_repository_reads_as_it_was_written(packed: tuple[Repo, str, Path]) -> None:
    repo, commit, _ = packed
    read = everything(repo.dir, commit)
    assert set(read) == set(CONTENTS)
    assert read[b"folder/3"] == CONTENTS[b"folder/3"][1]


def positions(size: int) -> list[int]:
    rng = random.Random(5)
    return sorted({*range(40), *(rng.randrange(size) for _ in range(60)), *range(size - 24, size)})


def test_a_flipped_byte_anywhere_in_a_pack_is_refused_or_changes_nothing(
    packed: tuple[Repo, str, Path], tmp_path: Path
) -> None:
    """Where git does not look at a byte (its own sums are checked by fsck only), what is read is still what was written."""
    repo, commit, pack = packed
    whole = everything(repo.dir, commit)
    copy = tmp_path / "copy.git"
    shutil.copytree(repo.dir, copy)
    target = copy / pack.relative_to(repo.dir)
    target.chmod(0o644)
    good = target.read_bytes()
    refused = 0  # nearly all of the pack is content
    for at in positions(len(good)):
        target.write_bytes(good[:at] + bytes([good[at] ^ 0x41]) + good[at + 1 :])
        catfile._TREES.clear()
        try:
            assert everything(copy, commit) == whole, at
        except SourceMismatch as error:
            refused += 1
            assert error.code == 3 and str(copy) in str(error) and error.hint
    assert refused > len(positions(len(good))) / 2
    target.write_bytes(good[: len(good) // 2])
    catfile._TREES.clear()
    with pytest.raises(SourceMismatch):
        everything(copy, commit)


def test_a_loose_object_with_other_content_is_refused(tmp_path: Path) -> None:
    """git itself hands such an object out without a word: the id is its file's name, not its content."""
    repo = Repo(tmp_path / "repo")
    good, bad = (repo.git("hash-object", "-w", "--stdin", stdin=d).decode().strip() for d in (b"good\n", b"evil\n"))
    files = [repo.dir / "objects" / oid[:2] / oid[2:] for oid in (good, bad)]
    files[0].chmod(0o644)
    files[0].write_bytes(files[1].read_bytes())
    assert repo.git("cat-file", "blob", good) == b"evil\n", "git is expected to believe it"
    with (
        ObjectReader(repo.dir) as reader,
        pytest.raises(SourceMismatch, match=f"object {good}: its content does not match its id"),
    ):
        reader.read(good)


@pytest.mark.parametrize("oid", ["0" * 40, "f" * 40, object_id("blob", b"nowhere")])
def test_a_missing_object_is_named(packed: tuple[Repo, str, Path], oid: str) -> None:
    repo, _, _ = packed
    with ObjectReader(repo.dir) as reader:
        with pytest.raises(SourceMismatch, match=f"object {oid}: missing"):
            reader.read(oid)


def test_a_replaced_object_is_not_followed(packed: tuple[Repo, str, Path]) -> None:
    """refs/replace would give another commit for the pin's id."""
    repo, _, _ = packed
    other = repo.git("hash-object", "-w", "--stdin", stdin=b"another\n").decode().strip()
    blob = object_id("blob", CONTENTS[b"folder/1"][1])
    repo.git("replace", blob, other)
    try:
        assert repo.git("cat-file", "blob", blob) == b"another\n"
        with ObjectReader(repo.dir) as reader:
            assert reader.read(blob) == ("blob", CONTENTS[b"folder/1"][1])
    finally:
        repo.git("replace", "-d", blob)


def test_a_tree_that_is_a_blob_is_refused(packed: tuple[Repo, str, Path]) -> None:
    repo, _, _ = packed
    with ObjectReader(repo.dir) as reader, pytest.raises(SourceMismatch, match="expected a tree, found a blob"):
        reader.files(object_id("blob", CONTENTS[b"folder/1"][1]))


def test_many_large_objects_do_not_block_the_pipe(tmp_path: Path) -> None:
    """More ids than a pipe holds and more content than a pipe holds, both at once."""
    repo = Repo(tmp_path / "repo")
    (commit,) = repo.history([{b"f%d" % i: (0o100644, b"%d\n" % i + b"x" * 3000) for i in range(2500)}])
    assert len(everything(repo.dir, commit)) == 2500


def test_a_reader_that_is_left_early_ends_its_process(packed: tuple[Repo, str, Path]) -> None:
    repo, commit, _ = packed
    with pytest.raises(RuntimeError, match="stop"), ObjectReader(repo.dir) as reader:
        many = reader.read_many([commit] * 5000)
        next(many)
        git = reader._git
        raise RuntimeError("stop")
    assert (git is None) == is_read_by_us(repo), "a process only where we cannot read"
    assert git is None or git._process.poll() is not None


def test_submodules_are_entries_and_no_blobs(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "repo")
    tree = repo.git("mktree", "--missing", stdin=b"160000 commit " + b"1" * 40 + b"\tsub\n").decode().strip()
    with ObjectReader(repo.dir) as reader:
        files = reader.files(tree)
        assert files == {b"sub": TreeEntry(0o160000, "1" * 40)}
        assert list(reader.blobs(files, files)) == []


def test_a_long_chain_of_deltas_and_a_large_file_read_as_they_were_written(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "repo")
    lines = [b"%d %s\n" % (i, random.Random(i).randbytes(20).hex().encode()) for i in range(4000)]
    versions = []
    for number in range(60):
        lines[number * 50] = b"changed %d\n" % number
        versions.append({b"file": (0o100644, b"".join(lines)), b"sub/large": (0o100644, bytes(300_000 + number))})
    commits = repo.history(versions)
    repo.git("repack", "-q", "-a", "-d", "-f", "--depth=60", "--window=70")
    repo.git("prune-packed")
    for commit, files in zip(commits, versions, strict=True):
        assert everything(repo.dir, commit) == {path: data for path, (_, data) in files.items()}


@pytest.mark.parametrize(
    "delta",
    [b"", b"\x05", b"\x04\x01\x01x", b"\x05\x05\x90\x06", b"\x05\x02\x01x", b"\x05\x01\x00", b"\x05\x05\x91"],
    ids=["empty", "no target", "other base", "copies too much", "too short", "unknown instruction", "cut off"],
)
def test_a_delta_that_does_not_fit_is_no_object(delta: bytes) -> None:
    with pytest.raises((ValueError, IndexError)):
        apply_delta(b"12345", delta, 1 << 20)


SPY = """#!/bin/sh
case " $* " in *" cat-file --batch "*) kill -KILL $$ ;; esac
exec {git} "$@"
"""


def test_a_git_that_is_killed_while_it_reads_is_named(tmp_path: Path) -> None:
    """Objects of another repository are not among our packs: git is asked, in a process that finds the spy first."""
    repo = Repo(tmp_path / "repo")
    commit = repo.history([CONTENTS])[-1]
    repo.git("clone", "--quiet", "--shared", "--bare", ".", str(tmp_path / "bare"))
    spy = tmp_path / "bin/git"
    spy.parent.mkdir()
    spy.write_text(SPY.format(git=shutil.which("git")))
    spy.chmod(0o755)
    code = "import sys, pathlib; from patchctl.git.catfile import ObjectReader\n"
    code += "with ObjectReader(pathlib.Path(sys.argv[1])) as reader: print(reader.read(sys.argv[2])[0])"
    line = [sys.executable, "-c", code, str(tmp_path / "bare"), commit]
    whole = subprocess.run(line, capture_output=True, text=True, check=True)
    assert whole.stdout == "commit\n"
    path = f"{spy.parent}{os.pathsep}{os.environ['PATH']}"
    killed = subprocess.run(line, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False)
    assert killed.returncode == 1 and "GitKilled" in killed.stderr, killed.stderr
