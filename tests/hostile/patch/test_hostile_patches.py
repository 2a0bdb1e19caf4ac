"""Every hostile patch is refused before the first write: with its exit code, its file and line, in little time and memory."""

from __future__ import annotations

import os
import re
import time
import tracemalloc
from pathlib import Path

import pytest
from corpus import BASE, FAMILIES, HEAD, Bad, add, modify
from engine_tools import Repo, reader_tree, stored

from patchctl.delta import apply_delta
from patchctl.errors import BadPatch, DoesNotApply
from patchctl.git.catfile import ObjectReader
from patchctl.patch import parse
from patchctl.patch.binary import MAX_INFLATED
from patchctl.stack.build import Built, StackBuilder
from patchctl.stack.patches import load_patch

SECONDS = 20
"""Far above what any of them takes on an idle machine (the slowest about one), and far below what a bomb would."""

# The row of docs/hostile-input.md that each part of the corpus belongs to.
ROWS = {
    "outside": "Patch writes outside the tree",
    "executed": "Patch writes what is executed",
    "modes": "Modes",
    "runs code": "Patch that runs code",
    "bombs": "Parser bombs",
    "wrong place": "Wrong place",
    "names": "File names",
    "headers": "Header games",
    "mails": "Mail games",
}
CASES = [
    pytest.param(case, id=f"{family}: {fault}", marks=pytest.mark.family(ROWS[family]))
    for family, cases in FAMILIES.items()
    for fault, case in cases.items()
]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Repo, str]:
    repo = Repo(tmp_path_factory.mktemp("hostile") / "repo")
    (commit,) = repo.history([{path: (0o100644, data) for path, data in BASE.items()}])
    return repo, commit


def apply_all(folder: Path, patches: tuple[bytes, ...], repo: Repo, commit: str) -> Built:
    """What `apply` does with a stack: load every patch with the rules for stacks, then build."""
    files = []
    for number, data in enumerate(patches, 1):
        files.append(folder / f"{number:04}-feature-x.patch")
        files[-1].write_bytes(data)
    loaded = [load_patch(file, folder) for file in files]
    with ObjectReader(repo.dir) as reader:
        return StackBuilder(reader, commit, reader_tree(reader, commit)).build(loaded)


@pytest.mark.parametrize("case", CASES)
def test_is_refused_with_its_place_and_nothing_written(case: Bad, base: tuple[Repo, str], tmp_path: Path) -> None:
    repo, commit = base
    before = stored(repo.dir)
    started = time.monotonic()
    with pytest.raises((BadPatch, DoesNotApply)) as refused:
        apply_all(tmp_path, case.patches, repo, commit)
    assert time.monotonic() - started < SECONDS
    error = refused.value
    assert (error.kind, error.code) == (case.kind, 2 if case.kind == "patch" else 4), error
    assert error.where is not None and error.where.file == f"{len(case.patches):04}-feature-x.patch"
    assert re.search(case.message, error.what), error.what
    assert case.line is None or error.where.line == case.line, (error.where, error.what)
    assert len(error.what) < 2000 and error.what.isprintable(), "a message is for a terminal"
    assert stored(repo.dir) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        f"{i + 1:04}-feature-x.patch" for i in range(len(case.patches))
    ]


def test_the_bases_of_the_corpus_are_good(base: tuple[Repo, str], tmp_path: Path) -> None:
    """Without its fault, each kind of case is taken; otherwise any mistake in the corpus would look like a refusal."""
    repo, commit = base
    for number, good in enumerate(
        (modify(), add(b"new"), add(b'"caf\\303\\250"'), add(b"dir/run", b"100755"), modify() + add(b"x"))
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert apply_all(folder, (HEAD + good,), repo, commit).tip_commit != commit


def test_the_wrong_postimage_case_has_the_right_preimage(base: tuple[Repo, str]) -> None:
    """Its abbreviated id must be that of the base's file, or the case would fail for the other reason."""
    repo, commit = base
    assert repo.git("rev-parse", f"{commit}:f").startswith(b"c4352f8")


def test_a_patch_of_too_many_bytes_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scaled: the limit is 256 MiB."""
    monkeypatch.setattr(parse, "MAX_PATCH", 1 << 20)
    with pytest.raises(BadPatch, match="larger than 1 MiB"):
        parse.parse_patch(HEAD + modify() + b"\n" * (1 << 20), "p")


@pytest.mark.parametrize("kind", ["fifo", "folder", "missing", "dangling link", "300 MiB", "device"])
def test_what_is_no_patch_file_is_refused_unread(kind: str, tmp_path: Path) -> None:
    """A FIFO would be waited for, and a sparse file of any size would be read into memory."""
    path = tmp_path / "p.patch"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "dangling link":
        path.symlink_to(tmp_path / "nowhere")
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "300 MiB":
        with path.open("wb") as out:
            out.truncate(300 << 20)
    with pytest.raises(BadPatch, match=r"not a regular file|cannot be read|larger than 256 MiB") as refused:
        load_patch(path, tmp_path)
    assert refused.value.where is not None and refused.value.where.file == "p.patch"


@pytest.mark.parametrize("family", ["bombs"])
def test_memory_stays_near_the_size_of_the_patch(family: str, base: tuple[Repo, str], tmp_path: Path) -> None:
    """Python's own memory, without what an honest patch of that size takes: about ten times its bytes."""
    repo, commit = base
    for fault, case in FAMILIES[family].items():
        size = sum(map(len, case.patches))
        if size > 300_000:
            continue  # traced memory is slow; the longer ones differ in length only
        folder = tmp_path / fault.replace(" ", "-")
        folder.mkdir()
        tracemalloc.start()
        try:
            with pytest.raises((BadPatch, DoesNotApply)):
                apply_all(folder, case.patches, repo, commit)
            assert tracemalloc.get_traced_memory()[1] < 30 * size + (130 << 20), fault
        finally:
            tracemalloc.stop()


def test_a_symlink_in_the_upstream_is_neither_written_through_nor_changed(tmp_path: Path) -> None:
    """CVE-2019-13636: the target is a symlink already, and the patch says nothing of modes."""
    repo = Repo(tmp_path / "repo")
    (commit,) = repo.history([{b"link": (0o120000, b"/tmp"), b"other": (0o120000, b"a\n")}])
    change = b"--- a/other\n+++ b/other\n@@ -1 +1 @@\n-a\n+/etc/passwd\n"
    for diff, message in (
        (add(b"link/evil"), "cannot be a file and a folder"),
        (b"diff --git a/other b/other\n" + change, "has mode 120000, which the patch does not state"),
        (b"diff --git a/other b/moved\nsimilarity index 100%\nrename from other\nrename to moved\n", "has mode 120000"),
        (b"diff --git a/other b/moved\nsimilarity index 100%\ncopy from other\ncopy to moved\n", "has mode 120000"),
        (
            b"diff --git a/other b/other\nindex 7898192..1111111 100644\n" + change,
            "has mode 120000, the patch is for 100644",
        ),
    ):
        folder = tmp_path / f"patches {abs(hash(diff))}"
        folder.mkdir()
        with pytest.raises(DoesNotApply, match=message):
            apply_all(folder, (HEAD + diff,), repo, commit)


@pytest.mark.parametrize(
    ("carries", "message"),
    [
        ("../evil.py", "leaves the tree"),
        ("/etc/evil", "is absolute"),
        (".git/hooks/x", "inside .git"),
        ("x.pth", "Python would run it"),
        (".gitattributes", "changes how git treats"),
        ("missing.py", "next to the patch is not a file"),
        ("link.py", "next to the patch is not a file"),
        ("linked/secret.py", "next to the patch is not a file"),
        ("good.py, good.py", "is carried twice"),
        ("f", "carried and changed by the diff"),
    ],
)
def test_carried_files_follow_the_same_rules(carries: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "good.py").write_text("x = 1\n")
    (tmp_path / "files" / "f").write_text("x = 1\n")
    (tmp_path / "files" / "link.py").symlink_to("/etc/passwd")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret.py").write_text("x = 1\n")
    (tmp_path / "files" / "linked").symlink_to(tmp_path / "elsewhere")
    head = HEAD.replace(b"Why.\n", b"Why.\n\nCarries: " + carries.encode() + b"\n")
    (tmp_path / "p.patch").write_bytes(head + modify())
    with pytest.raises(BadPatch, match=message) as refused:
        load_patch(tmp_path / "p.patch", tmp_path)
    assert str(refused.value.where) == "p.patch:7"


def test_a_delta_that_gives_more_than_it_says_stops_early(tmp_path: Path) -> None:
    """A delta of a few bytes copies 16 MiB again and again; it must stop at the size that it announces."""
    source = b"x" * (16 << 20)
    size = b"\x80\x80\x80\x08"
    copy = b"\xf0\xff\xff\xff"
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="exceeds its announced size"):
            apply_delta(source, size + size + copy * 1000, MAX_INFLATED)
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


def test_the_deepest_path_that_is_taken_is_built(base: tuple[Repo, str], tmp_path: Path) -> None:
    """The tree is walked by recursion; what is allowed must be far from Python's limit."""
    repo, commit = base
    deep = b"d/" * 100 + b"x"
    assert apply_all(tmp_path, (HEAD + add(deep),), repo, commit).tree.get(deep) is not None
