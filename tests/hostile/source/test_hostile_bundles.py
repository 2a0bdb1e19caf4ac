"""Bundles that were damaged, and bundles that were made to do harm: found, named, and nothing written.

The sweep flips a byte in every header, member, padding and at the end of a bundle of a whole small distribution. The
hostile ones have right digests throughout: whoever made them could compute digests too.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from distribution import CLOCK, GREETER, REPO, Made, make_distribution, run_patchctl
from on_disk import snapshot
from source_builders import tar_gz

from patchctl.bundle import layout
from patchctl.bundle.layout import (
    BLOCK,
    DIGEST,
    END,
    INDEX,
    BundleMember,
    Extent,
    Index,
    extents,
    parse_index,
    render_index,
)
from patchctl.bundle.reader import Bundle, open_bundle
from patchctl.errors import PatchctlError, SourceMismatch, WrongUse

pytestmark = pytest.mark.family("Submodules and bundles")

DIGEST_SIZE = len(layout.render_digest("0" * 64))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    greeter = replace(GREETER, sdist=("greeter/__init__.py", "greeter/hello.py"))
    return make_distribution(tmp_path_factory.mktemp("hostile"), (greeter, CLOCK), lock=True)


@pytest.fixture(scope="module")
def good(made: Made, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    out = tmp_path_factory.mktemp("out") / "good.tar"
    made.good("bundle", "create", "--profile", "full", "--out", str(out))
    return out.read_bytes()


def index_of(data: bytes) -> tuple[Index, int]:
    """The index of a good bundle and where its first member's header is."""
    size = int(data[124:135], 8)
    after = Extent(BundleMember(INDEX, size, ""), 0).after
    return parse_index(data[BLOCK : BLOCK + size]), Extent(BundleMember(DIGEST, DIGEST_SIZE, ""), after).after


def parts(data: bytes) -> Iterator[tuple[int, str]]:
    """Every byte's place, with what the message must name."""
    size = int(data[124:135], 8)
    first = Extent(BundleMember(INDEX, size, ""), 0)
    second = Extent(BundleMember(DIGEST, DIGEST_SIZE, ""), first.after)
    index, after = index_of(data)
    for extent in (first, second, *extents(index.members, after)):
        name = extent.member.name
        yield from ((at, f"the header of {name}") for at in range(extent.at, extent.start))
        yield from ((at, name) for at in range(extent.start, extent.start + extent.member.size))
        yield from ((at, f"the padding after {name}") for at in range(extent.start + extent.member.size, extent.after))
    yield from ((at, "the two zero blocks at its end") for at in range(len(data) - len(END), len(data)))


def refused(path: Path, data: bytes, sha256: str | None = None) -> PatchctlError:
    path.write_bytes(data)
    with pytest.raises((SourceMismatch, WrongUse)) as caught:
        open_bundle(path, sha256)
    assert str(caught.value).startswith(str(path)) and str(caught.value).isprintable()
    return caught.value


@pytest.mark.heavy("changes a bundle at each kind of byte")
def test_every_kind_of_byte_is_found_and_named(good: bytes, tmp_path: Path) -> None:
    """Each part's first, middle and last byte, and every 97th byte of the file: flipped in one bit and in all."""
    places = dict(parts(good))
    assert sorted(places) == list(range(len(good)))
    by_part: dict[str, list[int]] = {}
    for at, name in places.items():
        by_part.setdefault(name, []).append(at)
    chosen = {at for held in by_part.values() for at in (held[0], held[len(held) // 2], held[-1])}
    for at in sorted(chosen | set(range(0, len(good), 97))):
        for flip in (0x01, 0xFF):
            data = bytearray(good)
            data[at] ^= flip
            error = refused(tmp_path / "flipped.tar", bytes(data))
            assert error.code == 3, f"byte {at} ({places[at]}): {error}"
            assert places[at] in str(error), f"byte {at} is in {places[at]}: {error}"


def test_several_changes_are_all_named(good: bytes, tmp_path: Path) -> None:
    index, after = index_of(good)
    held = list(extents(index.members, after))
    data = bytearray(good)
    for extent in (held[0], held[3], held[-1]):
        data[extent.start] ^= 1
    said = str(refused(tmp_path / "b.tar", bytes(data) + b"more"))
    assert (
        all(e.member.name in said for e in (held[0], held[3], held[-1])) and "4 unexpected bytes after its end" in said
    )


def test_a_cut_bundle_is_found_wherever_it_is_cut(good: bytes, tmp_path: Path) -> None:
    index, after = index_of(good)
    edges = {e.at for e in extents(index.members, after)} | {e.start for e in extents(index.members, after)}
    for keep in sorted(edges | {e + 1 for e in edges} | set(range(1, len(good), 211)) | {len(good) - 1}):
        error = refused(tmp_path / "cut.tar", good[:keep])
        if error.code == 2:  # not even the name of the first member
            assert keep < len(layout.TOP + INDEX)
        else:
            assert error.code == 3 and "truncated in" in str(error), f"{keep}: {error}"


def test_more_behind_the_end(good: bytes, tmp_path: Path) -> None:
    for more in (b"\0", bytes(10240), good):
        said = str(refused(tmp_path / "b.tar", good + more))
        assert f"{len(more)} unexpected bytes after its end" in said


Change = Callable[[Any], None]


def forged(data: bytes, change: Change, more: tuple[tuple[str, bytes], ...] = ()) -> bytes:
    """A bundle of the good one's members and `more`, after `change` of the parsed index; its digests all agree."""
    index, after = index_of(data)
    contents = [(e.member.name, data[e.start : e.start + e.member.size]) for e in extents(index.members, after)]
    rows = [asdict(m) for m in index.members]
    for name, content in more:
        contents.append((name, content))
        rows.append(
            {"name": name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest(), "executable": False}
        )
    order = sorted(range(len(rows)), key=lambda n: rows[n]["name"])
    held = json.loads(render_index(index)) | {"members": [rows[n] for n in order]}
    change(held)
    text = (json.dumps(held, indent=1, sort_keys=True) + "\n").encode()
    return framed(text, [contents[n] for n in order])


def framed(text: bytes, contents: list[tuple[str, bytes]]) -> bytes:
    """The tar archive of an index's text and members, with headers that `layout` might refuse to write."""
    out = layout.header(BundleMember(INDEX, len(text), "")) + text + bytes(-len(text) % BLOCK)
    digest = layout.render_digest(hashlib.sha256(text).hexdigest())
    out += layout.header(BundleMember(DIGEST, len(digest), "")) + digest + bytes(-len(digest) % BLOCK)
    for name, content in contents:
        try:
            head = layout.header(BundleMember(name, len(content), ""))
        except AssertionError:  # a name that no header can hold
            head = bytes(BLOCK)
        out += head + content + bytes(-len(content) % BLOCK)
    return out + END


def nothing(held: Any) -> None:
    """The index stays."""


def first(**changes: Any) -> Change:
    return lambda held: held["members"][0].update(changes)


def swap(held: Any) -> None:
    held["members"][0], held["members"][1] = held["members"][1], held["members"][0]


def twice(held: Any) -> None:
    held["members"].insert(1, held["members"][0])


def in_form(form: str, /, **changes: Any) -> Change:
    def change(held: Any) -> None:
        next(s for s in held["sources"] if s["form"] == form).update(changes)

    return change


def deep(levels: int) -> Any:
    """Lists in lists: JSON reads more of them than Python's own recursion writes."""
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


D, S = layout.DISTRIBUTION, layout.SOURCES
FORGED: dict[str, tuple[Change, tuple[tuple[str, bytes], ...], str]] = {
    # what it is called: (what is done to the index, members that are added, what the message says)
    "parent": (nothing, ((f"{D}../../../pwned", b"x"),), "leaves the tree"),
    "absolute": (nothing, (("/etc/cron.d/pwned", b"x"),), "absolute"),
    "dot": (nothing, ((f"{D}./a", b"x"),), "leaves the tree"),
    "empty_part": (nothing, ((f"{D}/a", b"x"),), "empty component"),
    "backslash": (nothing, ((f"{D}..\\..\\pwned", b"x"),), "backslash"),
    "git_folder": (nothing, ((f"{D}.git/hooks/post-checkout", b"x"),), "inside .git"),
    "git_folder_in_capitals": (nothing, ((f"{D}.GIT/config", b"x"),), "inside .git"),
    "git_attributes": (nothing, ((f"{D}.gitattributes", b"x"),), "changes how git treats"),
    "windows_device": (nothing, ((f"{D}aux.py", b"x"),), "device on Windows"),
    "control_character": (nothing, ((f"{D}a\x1b[2Jb", b"x"),), "control"),
    "newline": (nothing, ((f"{D}a\nb", b"x"),), "control"),
    "bidirectional_mark": (nothing, ((f"{D}a\u202eb", b"x"),), "formatting"),
    "no_utf8": (first(name=f"{D}\udcff"), (), "not UTF-8"),
    "beside_the_two_folders": (nothing, (("else/where", b"x"),), "it is neither in"),
    "long_name": (nothing, ((D + "nnn/" * 60 + "n", b"x"),), "too long"),
    "long_part": (nothing, ((D + "n" * 256, b"x"),), "255 bytes"),
    "differs_in_case": (nothing, ((f"{D}MANIFESTS/upstreams.yaml", b"x"),), "where case or Unicode form is ignored"),
    "differs_in_unicode_form": (
        nothing,
        ((f"{D}\u00e9", b"x"), (f"{D}e\u0301", b"x")),
        "where case or Unicode form is ignored",
    ),
    "file_and_folder": (nothing, ((f"{D}manifests/upstreams.yaml/x", b"x"),), "a file and a folder"),
    "twice": (twice, (), "duplicate"),
    "not_sorted": (swap, (), "not sorted"),
    "negative_size": (first(size=-512), (), "size"),
    "huge_size": (first(size=1 << 62), (), "above"),
    "size_no_number": (first(size="12"), (), "size"),
    "size_is_true": (first(size=True), (), "size"),
    "no_digest": (first(sha256="0"), (), "sha256"),
    "unknown_key": (first(link="/etc/passwd"), (), "cannot be parsed"),
    "unknown_top_key": (lambda held: held.update(run="sh"), (), "not in patchctl's canonical form"),
    "no_members": (lambda held: held.pop("members"), (), "cannot be parsed"),
    "members_no_list": (lambda held: held.update(members=1), (), "cannot be parsed"),
    "profile_no_name": (lambda held: held.update(profile="../x"), (), "invalid name"),
    "upstream_no_name": (in_form("git", upstream="../x"), (), "invalid name"),
    "unknown_form": (in_form("git", form="svn"), (), "of unknown form"),
    "form_twice": (lambda held: held["sources"].append(held["sources"][0]), (), "duplicate"),
    "source_is_no_member": (in_form("git", member=f"{S}git/nowhere.pack"), (), "no member"),
    "source_in_the_distribution": (in_form("git", member=f"{D}manifests/upstreams.yaml"), (), "no member"),
    "member_is_no_source": (nothing, ((f"{S}git/extra.pack", b"x"),), "not a listed source"),
    "version_has_a_line_of_its_own": (
        in_form("sdist", version="1.0\nsha256 " + "0" * 64),
        (),
        "needs a version and a sha256",
    ),
    "archive_digest_no_digest": (in_form("sdist", sha256="0"), (), "needs a version and a sha256"),
    "sdist_with_a_commit": (in_form("sdist", commit="1" * 40), (), "needs a version and a sha256"),
    "git_with_a_version": (in_form("git", version="1.0\n"), (), "needs a commit"),
    "source_is_a_list": (in_form("git", member=[]), (), "invalid member name"),
    "source_is_a_mapping": (in_form("git", member={}), (), "invalid member name"),
    "size_is_deep": (first(size=deep(900)), (), "size"),
    "commit_is_an_option": (in_form("git", commit="--upload-pack=sh"), (), "needs a commit"),
}


@pytest.mark.parametrize("fault", FORGED)
def test_a_forged_index_is_refused(good: bytes, fault: str, tmp_path: Path) -> None:
    change, more, reason = FORGED[fault]
    before = {p.name for p in tmp_path.iterdir()}
    error = refused(tmp_path / "forged.tar", forged(good, change, more))
    assert error.code == 3 and reason in str(error), str(error)
    assert {p.name for p in tmp_path.iterdir()} == before | {"forged.tar"}


def test_the_bundle_that_the_faults_are_added_to_is_taken(good: bytes, tmp_path: Path) -> None:
    assert forged(good, nothing) == good
    path = tmp_path / "more.tar"
    path.write_bytes(forged(good, nothing, ((f"{D}scripts/extra.sh", b"x"),)))
    assert isinstance(open_bundle(path), Bundle)


def test_an_index_that_is_no_json(good: bytes, tmp_path: Path) -> None:
    for text in (b"", b"[" * 100_000, b'{"bundle": 1}\n', b"\xff\xfe", b'{"bundle": 1, "bundle": 1}\n', b"null\n"):
        error = refused(tmp_path / "b.tar", framed(text, []))
        assert error.code == 3 and "cannot be parsed" in str(error)


def test_a_newer_bundle_is_told_from_a_broken_one(good: bytes, tmp_path: Path) -> None:
    error = refused(tmp_path / "b.tar", forged(good, lambda held: held.update(bundle=2)))
    assert error.code == 2 and "version 2" in str(error)


def test_an_index_that_says_it_is_huge_is_not_read(good: bytes, tmp_path: Path) -> None:
    head = layout.header(BundleMember(INDEX, layout.INDEX_LIMIT + 1, ""))
    assert "the limit is" in str(refused(tmp_path / "b.tar", head + good[BLOCK:]))


@pytest.mark.heavy("archives of many megabytes, with their peak memory")
@pytest.mark.parametrize("item", ["[]", "[1,1]", '{"name":"","size":0,"sha256":""}', '"a"'])
@pytest.mark.parametrize("key", ["members", "missing", "sources", "profile"])
def test_an_index_of_many_small_things_takes_little_memory(key: str, item: str, tmp_path: Path) -> None:
    """In a process of its own, whose peak tells: the largest index that is read, filled with one thing again and again."""
    held = {"bundle": 1, "members": [], "missing": [], "sources": [], "profile": "full"}
    filled = json.dumps({**held, key: "@"}).replace(
        '"@"', f"[{','.join([item] * (layout.INDEX_LIMIT // (len(item) + 2)))}]"
    )
    (tmp_path / "b.tar").write_bytes(framed(filled.encode(), []))
    script = (
        "import sys\nfrom pathlib import Path\nfrom patchctl.bundle.reader import open_bundle\n"
        "from patchctl.errors import SourceMismatch\n"
        "try: open_bundle(Path(sys.argv[1]))\nexcept SourceMismatch: pass\nelse: sys.exit('taken')\n"
        # not getrusage: that peak is inherited from the process of the tests, which may be larger
        "print(next(int(x.split()[1]) >> 10 for x in open('/proc/self/status') if x.startswith('VmHWM')))"
    )
    line = [sys.executable, "-c", script, str(tmp_path / "b.tar")]
    done = subprocess.run(line, env={"PYTHONPATH": str(REPO)}, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 300


def test_too_many_members(good: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "COUNT_LIMIT", 3)
    assert "more than 3 members" in str(refused(tmp_path / "b.tar", good))


def test_too_many_bytes(good: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "TOTAL_LIMIT", 1000)
    assert "exceed 1000 bytes" in str(refused(tmp_path / "b.tar", good))


@pytest.mark.parametrize("kind", [b"1", b"2", b"3", b"5", b"6", b"x", b"L"])
def test_a_header_of_another_kind_is_no_header_of_ours(good: bytes, kind: bytes, tmp_path: Path) -> None:
    """A symbolic link, a device, ... with a right checksum: it does not follow from the index."""
    index, after = index_of(good)
    extent = next(extents(index.members, after))
    block = bytearray(good[extent.at : extent.start])
    block[156:157] = kind
    block[157:168] = b"/etc/passwd"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    data = good[: extent.at] + bytes(block) + good[extent.start :]
    assert f"the header of {extent.member.name}" in str(refused(tmp_path / "b.tar", data))


def replaced(good: bytes, form: str, content: bytes) -> bytes:
    """A bundle whose git pack or source distribution of greeter is another one, with right digests."""
    index, after = index_of(good)
    source = index.source("greeter", form)
    assert source is not None
    held = list(extents(index.members, after))
    contents = [(e.member.name, good[e.start : e.start + e.member.size]) for e in held]
    contents = [(n, content if n == source.member else c) for n, c in contents]
    members = [
        replace(e.member, size=len(c), sha256=hashlib.sha256(c).hexdigest())
        for (_, c), e in zip(contents, held, strict=True)
    ]
    return framed(render_index(replace(index, members=tuple(members))), contents)


def taken(path: Path, tmp_path: Path, *args: str) -> tuple[int, str]:
    """What `apply --bundle` does with it; nothing of it may come into the workspace or the cache of sources."""
    home = tmp_path / "other"
    ws = tmp_path / "ws"
    done = run_patchctl("apply", "--bundle", str(path), "-p", "full", "--workspace", str(ws), *args, home=home)
    assert not ws.exists() and "Traceback" not in done.stderr
    cache = home / ".cache" / "patchctl"
    assert not (cache / "git" / "greeter").exists() and not (cache / "sdist" / "greeter").exists()
    assert not list((cache / "tmp").iterdir())
    return done.returncode, done.stderr


@pytest.mark.parametrize("content", ["garbage", "another-commit", "cut", "empty"])
def test_a_pack_that_is_not_the_pinned_commit(made: Made, good: bytes, content: str, tmp_path: Path) -> None:
    index, after = index_of(good)
    held = {e.member.name: good[e.start : e.start + e.member.size] for e in extents(index.members, after)}
    greeter, clock = (index.source(n, "git") for n in ("greeter", "clock"))
    assert greeter is not None and clock is not None
    own = held[greeter.member]
    pack = {"garbage": b"PACK" + bytes(100), "another-commit": held[clock.member], "cut": own[:-30], "empty": b""}[
        content
    ]
    path = tmp_path / "b.tar"
    path.write_bytes(replaced(good, "git", pack))
    code, said = taken(path, tmp_path)
    assert code == 3 and greeter.member in said and str(path) in said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
def test_a_full_disk_is_not_a_wrong_pack(made: Made, good: bytes, tmp_path: Path) -> None:
    path, disk = tmp_path / "b.tar", tmp_path / "disk"
    disk.mkdir()
    path.write_bytes(good)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        for size in ("12k", "16k", "20k", "24k", "28k"):
            subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)
            line = (f"--root={made.root}", f"--cache={disk}/c", "fetch", "--bundle", str(path), "-p", "full")
            done = run_patchctl(*line, home=tmp_path / "home")
            full = "No space left" in done.stderr or "Out of diskspace" in done.stderr  # ours, and git's
            assert done.returncode == 7 and full, (size, done.stderr)
    finally:
        subprocess.run(["umount", str(disk)], check=False)


def test_an_archive_that_is_not_the_pinned_one(good: bytes, tmp_path: Path) -> None:
    path = tmp_path / "b.tar"
    path.write_bytes(replaced(good, "sdist", tar_gz({"greeter-1.0/evil.py": b"x"})))
    code, said = taken(path, tmp_path, "--source", "sdist")
    assert code == 3 and "the archive in it has the sha256" in said


def test_a_bundle_that_changes_after_the_check(good: bytes, tmp_path: Path) -> None:
    path = tmp_path / "b.tar"
    path.write_bytes(good)
    bundle = open_bundle(path)
    extent = bundle.places[f"{D}manifests/upstreams.yaml"]
    data = bytearray(good)
    data[extent.start] ^= 1
    path.write_bytes(data)
    with pytest.raises(SourceMismatch, match="was modified while the bundle was in use"):
        bundle.read(extent.member.name)


def test_a_damaged_bundle_writes_nothing(good: bytes, tmp_path: Path) -> None:
    data = bytearray(good)
    data[len(data) // 2] ^= 1
    path = tmp_path / "b.tar"
    path.write_bytes(data)
    before = snapshot(tmp_path)
    for line in (
        ("fetch", "--bundle", str(path), "-p", "full"),
        ("apply", "--bundle", str(path), "-p", "full", "--workspace", str(tmp_path / "ws")),
        ("bundle", "unpack", str(path), "--to", str(tmp_path / "to")),
    ):
        done = run_patchctl(*line, home=tmp_path / "empty")
        assert done.returncode == 3 and "the bundle was modified: " in done.stderr
        (tmp_path / "empty").rmdir()
    assert snapshot(tmp_path) == before
