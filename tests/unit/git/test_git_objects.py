"""Trees and commits against git: ids equal to `git write-tree`, `hash-object` and `commit-tree`."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_tools import Repo
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from patchctl.git.objects import (
    Files,
    Person,
    TreeBuilder,
    TreeEntry,
    object_id,
    parse_tree,
    render_commit,
)

QUICK = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
BLOB = object_id("blob", b"x")
# Names whose order depends on the slash that git puts after a folder's name: a.b < a/ < a0.
PARTS = st.sampled_from(
    [b"a", b"a.b", b"a0", b"a-", b"b", "é".encode(), b"\xff", b"A", b"with space", b'q"', b"x" * 200]
)
PATHS = st.lists(PARTS, min_size=1, max_size=4).map(b"/".join)


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Repo:
    made = Repo(tmp_path_factory.mktemp("objects") / "repo")
    made.git("hash-object", "-w", "--stdin", stdin=b"x")
    return made


def without_clashes(paths: list[bytes]) -> list[bytes]:
    """A path cannot be a file and a folder at once; the first one stays."""
    kept: list[bytes] = []
    for path in dict.fromkeys(paths):
        if not any(path.startswith(k + b"/") or k.startswith(path + b"/") for k in kept):
            kept.append(path)
    return kept


def write_tree(repo: Repo, files: Files, index: Path) -> str:
    index.unlink(missing_ok=True)
    listing = b"".join(b"%o %s\t%s\0" % (e.mode, e.id.encode(), p) for p, e in files.items())
    repo.git("update-index", "-z", "--index-info", stdin=listing, GIT_INDEX_FILE=str(index))
    return repo.git("write-tree", "--missing-ok", GIT_INDEX_FILE=str(index)).decode().strip()


MODES = st.sampled_from([0o100644, 0o100755, 0o120000, 0o160000])


@QUICK
@given(
    paths=st.lists(PATHS, max_size=12).map(without_clashes),
    later=st.lists(st.tuples(PATHS, st.booleans()), max_size=8),
    data=st.data(),
)
def test_tree_ids_are_those_of_write_tree_after_any_change(
    repo: Repo, tmp_path: Path, paths: list[bytes], later: list[tuple[bytes, bool]], data: st.DataObject
) -> None:
    files: Files = {p: TreeEntry(data.draw(MODES), BLOB) for p in paths}
    builder = TreeBuilder(files)
    stored: dict[str, bytes] = {}
    assert builder.write(stored) == write_tree(repo, files, tmp_path / "index")
    for path, add in later:
        if add and len(without_clashes([*files, path])) == len({*files, path}):
            files[path] = TreeEntry(data.draw(MODES), object_id("blob", path))
            builder.put(path, files[path])
        elif path in files:
            del files[path]
            builder.remove(path)
        assert builder.is_folder(path) == any(p.startswith(path + b"/") for p in files)
    tree = builder.write(stored)
    assert tree == write_tree(repo, files, tmp_path / "index")
    assert {oid: object_id("tree", d) for oid, d in stored.items()} == {oid: oid for oid in stored}
    assert flat(stored, tree) == files


def flat(stored: dict[str, bytes], tree: str, prefix: bytes = b"") -> Files:
    """Read back what was stored: it must be complete, or a KeyError shows the folder that was not given out."""
    found: Files = {}
    for name, entry in parse_tree(stored[tree]):
        if entry.mode == 0o040000:
            found.update(flat(stored, entry.id, prefix + name + b"/"))
        else:
            found[prefix + name] = entry
    return found


def test_only_changed_folders_are_given_out_each_with_what_it_was() -> None:
    builder = TreeBuilder({b"a/b/f": TreeEntry(0o100644, BLOB), b"c/g": TreeEntry(0o100644, BLOB)})
    first: dict[str, bytes] = {}
    root = builder.write(first)
    assert len(first) == 4
    builder.put(b"a/b/f", TreeEntry(0o100755, BLOB))
    given: list[tuple[str, bytes, str | None]] = []
    assert builder.write_to(lambda *a: given.append(a)) != root
    assert len(given) == 3, "the root, a and a/b"
    assert [before in first for _, _, before in given] == [True] * 3 and given[-1][2] == root
    assert builder.write_to(lambda *a: given.append(a)) == given[-1][0] and len(given) == 3


def test_removing_what_is_not_there_is_an_error() -> None:
    builder = TreeBuilder({b"a/f": TreeEntry(0o100644, BLOB)})
    for path in (b"f", b"a/g", b"x/y"):
        with pytest.raises(KeyError):
            builder.remove(path)


def test_a_tree_object_is_parsed_in_its_own_order() -> None:
    entries = [
        (b"a.b", TreeEntry(0o100644, BLOB)),
        (b"a", TreeEntry(0o040000, BLOB)),
        (b"a0", TreeEntry(0o160000, BLOB)),
    ]
    data = b"".join(b"%o %s\0%s" % (e.mode, name, bytes.fromhex(e.id)) for name, e in entries)
    assert parse_tree(data) == entries
    assert parse_tree(b"") == []


@pytest.mark.parametrize(
    ("kind", "data"), [("blob", b""), ("blob", b"x\r\n\0"), ("tree", b""), ("blob", b"y" * 100000)]
)
def test_object_ids_are_those_of_hash_object(repo: Repo, kind: str, data: bytes) -> None:
    assert object_id(kind, data) == repo.git("hash-object", "-t", kind, "--stdin", stdin=data).decode().strip()


def test_a_commit_is_the_one_that_commit_tree_makes(repo: Repo) -> None:
    tree = repo.git("mktree", stdin=f"100644 blob {BLOB}\tf\n".encode()).decode().strip()
    env = {
        "GIT_AUTHOR_NAME": "Émile (x) Z",
        "GIT_AUTHOR_EMAIL": "e@example.com",
        "GIT_AUTHOR_DATE": "1700000000 -0330",
        "GIT_COMMITTER_DATE": "1700000001 +0530",
    }
    message = "sübject\n\nbody\n"
    first = repo.git("commit-tree", tree, stdin=message.encode(), **env).decode().strip()
    second = repo.git("commit-tree", "-p", first, tree, stdin=message.encode(), **env).decode().strip()
    author = Person("Émile (x) Z", "e@example.com", "1700000000 -0330")
    committer = Person("patchctl", "patchctl@localhost", "1700000001 +0530")
    assert object_id("commit", render_commit(tree, [], author, committer, message)) == first
    assert object_id("commit", render_commit(tree, [first], author, committer, message)) == second
