"""The pack and index writer against git: `verify-pack`, `fsck --strict`, `cat-file` of every object, and offsets over 2 GiB."""

from __future__ import annotations

import hashlib
import random
import resource
import struct
from pathlib import Path

import pytest
from engine_tools import Repo, git, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from patchctl import delta
from patchctl.git import pack
from patchctl.git.objects import Person, TreeBuilder, TreeEntry, object_id, render_commit
from patchctl.git.pack import PackWriter
from patchctl.patch.binary import MAX_INFLATED

QUICK = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
PERSON = Person("A", "a@example.com", "1 +0000")


def check_with_git(repo: Repo, written: Path, objects: dict[str, tuple[str, bytes]]) -> None:
    """git's own opinion of a pack: its sums, its objects' connections, and every object's bytes."""
    said = git("verify-pack", "-v", str(written), cwd=repo.path)
    assert sum(line[:40].decode("ascii", "replace") in objects for line in said.split(b"\n")) == len(objects)
    status, complaints = run(["fsck", "--strict", "--full"], cwd=repo.path)
    assert status == 0 and b"error" not in complaints, complaints
    asked = "".join(f"{oid}\n" for oid in objects).encode()
    answer = git("cat-file", "--batch", cwd=repo.path, stdin=asked)
    expected = b"".join(b"%s %s %d\n%s\n" % (o.encode(), k.encode(), len(d), d) for o, (k, d) in objects.items())
    assert answer == expected


def commit_of(
    writer: PackWriter, objects: dict[str, tuple[str, bytes]], blobs: dict[bytes, str], parents: list[str]
) -> str:
    """A commit on these blobs, so that nothing in the pack is dangling or broken to fsck."""
    builder = TreeBuilder({path: TreeEntry(0o100644, oid) for path, oid in blobs.items()})
    folders: dict[str, bytes] = {}
    tree = builder.write(folders)
    for oid, data in folders.items():
        writer.add_known(oid, "tree", data)
        objects[oid] = ("tree", data)
    data = render_commit(tree, parents, PERSON, PERSON, "m\n")
    objects[object_id("commit", data)] = ("commit", data)
    return writer.add("commit", data)


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return Repo(tmp_path / "repo")


@QUICK
@given(
    contents=st.lists(
        st.binary(max_size=300) | st.integers(0, 3).map(lambda n: b"line\n" * 10 ** (n + 1)), min_size=1, max_size=12
    )
)
def test_git_reads_every_object_of_a_written_pack(
    tmp_path_factory: pytest.TempPathFactory, contents: list[bytes]
) -> None:
    repo = Repo(tmp_path_factory.mktemp("pack") / "repo")
    writer = PackWriter()
    objects = {object_id("blob", data): ("blob", data) for data in contents}
    blobs = {b"folder %d/f" % i: writer.add("blob", data) for i, data in enumerate(contents)}
    commit = commit_of(writer, objects, blobs, [])
    written = writer.write(repo.dir / "objects" / "pack")
    assert written is not None and len(writer) == len(objects)
    repo.git("update-ref", "refs/heads/main", commit)
    check_with_git(repo, written, objects)


def test_versions_of_one_file_become_deltas_that_git_reads(repo: Repo) -> None:
    """A long chain: deeper than one reader should go, so it must begin anew, and small beside the whole objects."""
    rng = random.Random(2)
    writer, objects = PackWriter(), dict[str, tuple[str, bytes]]()
    lines = [b"line %d %d\n" % (i, rng.randrange(10**9)) for i in range(800)]
    origin: str | None = None
    commit: list[str] = []
    for _ in range(130):
        at = rng.randrange(len(lines))
        lines[at : at + rng.randrange(3)] = [b"edit %d\n" % rng.randrange(10**9)] * rng.randrange(3)
        data = b"".join(lines)
        oid = object_id("blob", data)
        writer.add_known(oid, "blob", data, origin)
        objects[oid], origin = ("blob", data), oid
        commit = [commit_of(writer, objects, {b"f": oid}, commit)]
    written = writer.write(repo.dir / "objects" / "pack")
    assert written is not None
    repo.git("update-ref", "refs/heads/main", commit[0])
    check_with_git(repo, written, objects)
    chains = [
        line
        for line in git("verify-pack", "-v", str(written), cwd=repo.path).split(b"\n")
        if line.startswith(b"chain length")
    ]
    assert chains and max(int(line.split()[3].rstrip(b":")) for line in chains) == 50
    assert written.stat().st_size < sum(len(data) for _, data in objects.values()) / 10


def test_the_newest_version_is_whole_and_older_ones_are_deltas_of_later_ones(tmp_path: Path) -> None:
    """A tree is written from the newest: a reader of it works through no delta. One that came back is what it was."""
    versions = [b"line\n" * 400 + b"version %d\n" % number for number in range(4)]
    writer, origin = PackWriter(stored=True), None
    for data in (*versions, versions[1]):
        oid = object_id("blob", data)
        writer.add_known(oid, "blob", data, origin)
        origin = oid
    assert len(writer) == 4
    written = writer.write(tmp_path)
    assert written is not None
    said = git("verify-pack", "-v", str(written), cwd=tmp_path).decode().splitlines()
    depths = {
        line.split()[0]: int(line.split()[5]) if len(line.split()) > 5 else 0 for line in said if " blob " in line
    }
    assert [depths[object_id("blob", data)] for data in versions] == [3, 2, 1, 0]


def test_an_origin_outside_the_pack_is_not_referred_to(repo: Repo) -> None:
    """A pack on the disk must hold its deltas' bases; the upstream's blob lies in another pack."""
    base, data = b"a\n" * 500, b"a\n" * 500 + b"b\n"
    writer, objects = PackWriter(), {object_id("blob", data): ("blob", data)}
    writer.add_known(object_id("blob", data), "blob", data, object_id("blob", base))
    commit = commit_of(writer, objects, {b"f": object_id("blob", data)}, [])
    written = writer.write(repo.dir / "objects" / "pack")
    assert written is not None
    repo.git("update-ref", "refs/heads/main", commit)
    check_with_git(repo, written, objects)


def test_the_same_object_is_stored_once_and_the_pack_repeats(tmp_path: Path) -> None:
    packs = []
    for name in ("one", "two"):
        writer = PackWriter()
        assert [writer.add("blob", b"x") for _ in range(3)] == [object_id("blob", b"x")] * 3
        assert len(writer) == 1
        written = writer.write(tmp_path / name)
        assert written is not None
        packs.append((written.name, written.read_bytes(), written.with_suffix(".idx").read_bytes()))
    assert packs[0] == packs[1]


def test_no_object_no_pack(tmp_path: Path) -> None:
    assert PackWriter().write(tmp_path / "pack") is None
    assert not (tmp_path / "pack").exists()


def test_files_of_a_pack_are_read_only_and_nothing_else_is_left(tmp_path: Path) -> None:
    writer = PackWriter()
    writer.add("blob", b"x")
    written = writer.write(tmp_path)
    assert written is not None
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([written.name, written.with_suffix(".idx").name])
    assert {p.stat().st_mode & 0o777 for p in tmp_path.iterdir()} == {0o444}


def test_a_write_that_fails_leaves_no_temporary_file(tmp_path: Path) -> None:
    """As on a full disk, by the limit of a file's size."""
    writer = PackWriter()
    writer.add("blob", b"x")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            writer.write(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


# ---- offsets beyond 2 GiB, which no test can afford to write


def read_index(data: bytes) -> tuple[dict[str, tuple[int, int]], bytes]:
    """An index of version 2 by its specification, written apart from the code under test: places and the pack's trailer."""
    assert data[:8] == b"\xfftOc\0\0\0\2"
    fanout = struct.unpack(">256I", data[8:1032])
    count = fanout[255]
    ids = [data[1032 + 20 * i : 1052 + 20 * i].hex() for i in range(count)]
    assert ids == sorted(ids)
    assert [sum(int(i[:2], 16) <= n for i in ids) for n in range(256)] == list(fanout)
    at = 1032 + 20 * count
    sums = struct.unpack_from(f">{count}I", data, at)
    offsets = struct.unpack_from(f">{count}I", data, at + 4 * count)
    large = data[at + 8 * count : -40]
    places = [struct.unpack_from(">Q", large, 8 * (o & 0x7FFFFFFF))[0] if o & 0x80000000 else o for o in offsets]
    assert len(large) == 8 * sum(o >> 31 for o in offsets)
    assert data[-20:] == hashlib.sha1(data[:-20], usedforsecurity=False).digest()
    return dict(zip(ids, zip(places, sums, strict=True), strict=True)), data[-40:-20]


@pytest.mark.parametrize(
    "offsets",
    [
        [12],
        [12, 0x7FFFFFFF],
        [0x80000000],
        [12, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x100000000, 2**40],
        [2**33, 2**32, 12],
    ],
)
def test_offsets_beyond_two_gigabytes_go_to_the_large_table(offsets: list[int]) -> None:
    places = {object_id("blob", b"%d" % o): (o, i * 7 + 1) for i, o in enumerate(offsets)}
    assert read_index(pack._index(places, b"T" * 20)) == (places, b"T" * 20)


def test_git_finds_objects_through_the_large_table(repo: Repo) -> None:
    """The same table with real offsets: git's `show-index` reads what we write."""
    places = {object_id("blob", b"%d" % o): (o, 5) for o in (12, 2**31 - 1, 2**31, 2**35)}
    said = git("show-index", cwd=repo.path, stdin=pack._index(places, b"T" * 20))
    shown = {line.split()[1].decode(): int(line.split()[0]) for line in said.splitlines()}
    assert shown == {oid: offset for oid, (offset, _) in places.items()}


@pytest.mark.parametrize("back", [1, 127, 128, 16511, 16512, 2**21, 2**31, 2**40])
def test_distances_to_a_base_decode_as_the_format_says(back: int) -> None:
    data = pack._distance(back)
    value = data[0] & 0x7F
    for byte in data[1:]:
        value = (value + 1) << 7 | byte & 0x7F
    assert value == back
    assert [b >> 7 for b in data] == [1] * (len(data) - 1) + [0]


@pytest.mark.parametrize("size", [0, 1, 15, 16, 2047, 2048, 2**31, 2**35])
def test_object_headers_decode_as_the_format_says(size: int) -> None:
    data = pack._object_header(3, size)
    value, shift = data[0] & 15, 4
    for byte in data[1:]:
        value |= (byte & 0x7F) << shift
        shift += 7
    assert (value, data[0] >> 4 & 7) == (size, 3)


# ---- deltas


@settings(QUICK, max_examples=300)
@given(st.data())
def test_a_delta_gives_its_target(data: st.DataObject) -> None:
    """Checked with the other half of the code, which is itself checked against `git apply --binary`."""
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    base = data.draw(st.binary(max_size=200)) + rng.randbytes(data.draw(st.sampled_from([0, 10, 5000, 20000])))
    target = bytearray(base)
    for _ in range(data.draw(st.integers(0, 5))):
        at = rng.randrange(len(target) + 1)
        target[at : at + rng.randrange(300)] = rng.randbytes(rng.randrange(300))
    made = delta.make(base, bytes(target), len(target))
    assert made is not None and delta.apply_delta(base, made, MAX_INFLATED) == bytes(target)


def test_a_copy_of_more_than_a_copy_can_hold_is_split() -> None:
    base = random.Random(3).randbytes(0x1000000 + 999)
    made = delta.make(base, b"start" + base + b"end", 100)
    assert (
        made is not None and len(made) < 100 and delta.apply_delta(base, made, MAX_INFLATED) == b"start" + base + b"end"
    )


def test_a_delta_that_holds_too_much_is_not_made() -> None:
    assert delta.make(b"a" * 100, bytes(range(200)), 100) is None


def test_a_delta_against_itself_and_nothing() -> None:
    for base, target in ((b"", b""), (b"abc", b""), (b"", b"abc"), (b"abc", b"abc")):
        made = delta.make(base, target, 10)
        assert made is not None and delta.apply_delta(base, made, MAX_INFLATED) == target
