"""Images that are small until they are unpacked, or whose headers would take memory or time without end; each ends with 2."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import pytest
from bombs import MIB, end, header, image_of, member, pax, zeros

from patchctl.errors import WrongUse
from patchctl.image.image_archive import ImageFile, open_image
from patchctl.source.types import ImageLimits

pytestmark = pytest.mark.family("Images")
LIMITS = ImageLimits(unpacked_mib=4, names=50)
OURS = b"opt/patched/"
PLAIN = [*member(OURS + b"f", 3, [b"abc"])]


def unpacked(folder: Path, *layers: Iterable[bytes], limits: ImageLimits = LIMITS) -> Path:
    image = folder / "image.tar"
    image_of(image, *(gzip.compress(b"".join(one)) for one in layers))
    return read(image, folder / "out", limits)


def read(image: Path, to: Path, limits: ImageLimits = LIMITS) -> Path:
    to.mkdir()
    with open_image(ImageFile(image, "image.tar"), limits) as opened:
        opened.unpack(to, [PurePosixPath("/opt/patched")])
    return to


def files(count: int, prefix: bytes = OURS) -> list[bytes]:
    return [header(prefix + b"f%d" % number, 0) for number in range(count)]


def negative(block: bytes) -> bytes:
    """The header with GNU's binary number for -1,024 as its size, and the checksum that goes with it."""
    changed = bytearray(block)
    changed[124:136] = (-1024).to_bytes(12, "big", signed=True)
    changed[148:156] = b" " * 8
    changed[148:156] = b"%06o\0 " % sum(changed)
    return bytes(changed)


def linked(count: int) -> list[bytes]:
    """One file of a MiB, and hard links to it, which are written as copies."""
    link = bytearray(header(OURS + b"link", 0, b"1"))
    link[157:170] = (OURS + b"f").ljust(13, b"\0")
    found = [*member(OURS + b"f", MIB, zeros(MIB))]
    for number in range(count):
        link[: len(OURS) + 3] = OURS + b"l%02d" % number
        link[148:156] = b" " * 8
        link[148:156] = b"%06o\0 " % sum(link)
        found.append(bytes(link))
    return found


def sparse_map() -> list[bytes]:
    """A sparse file of format 1.0, which announces a map of a million parts."""
    records = b"".join(_record(key, value) for key, value in ((b"major", b"1"), (b"minor", b"0"), (b"name", b"x")))
    return [*member(b"pax", len(records), [records], b"x"), *member(b"x", 512, [b"1000000\n".ljust(512, b"0")])]


def _record(key: bytes, value: bytes) -> bytes:
    rest = b" GNU.sparse." + key + b"=" + value + b"\n"
    return b"%d" % (len(rest) + 2) + rest


@pytest.mark.parametrize(
    ("layers", "what"),
    [
        ([[*member(OURS + b"f", 5 * MIB, zeros(5 * MIB))]], "its trees unpack to more than 4 MiB"),
        ([[*member(OURS + b"f", 2 * MIB, zeros(2 * MIB))]] * 3, "its trees unpack to more than 4 MiB"),
        ([linked(9)], "its trees unpack to more than 4 MiB"),
        ([files(60)], "its trees have more than 50 names"),
        ([files(30), files(30)], "its trees have more than 50 names"),
        ([files(1, OURS + b"d/" * 40), files(1, OURS + b"e/" * 40)], "its trees have more than 50 names"),
        ([files(60, OURS + b".wh.")], "its trees have more than 50 names"),
        ([[*member(b"usr/f", 80 * MIB, zeros(80 * MIB))]], "unpacks to more than 100 times its"),
        ([[header(b"././@LongLink", 100 * MIB, b"L")]], "an extended header announces 104857600 bytes"),
        ([[header(b"././@LongLink", 100 * MIB, b"K")]], "an extended header announces"),
        ([[header(b"pax", 100 * MIB, b"x")]], "an extended header announces"),
        (
            [
                [
                    *member(b"g", 13 * 300, [b"".join(b"13 k%03d=abcd\n" % n for n in range(300))[: 13 * 300]], b"g"),
                    *PLAIN,
                ]
            ],
            "global headers",
        ),
        ([[header(b"usr/f", 512, b"S")]], "is a sparse file"),
        ([sparse_map()], "is a sparse file"),
        ([[negative(header(b"usr/f", 0))]], "cannot be read"),
        ([[pax(b"size", b"-1024"), header(b"usr/f", 0)]], "a negative size"),
    ],
    ids=[
        "zeros",
        "zeros in layers",
        "hard links",
        "names",
        "names in layers",
        "folders",
        "whiteouts",
        "ratio elsewhere",
        "long name",
        "long link",
        "pax header",
        "global headers",
        "old sparse",
        "sparse map",
        "negative size",
        "negative pax size",
    ],
)
def test_is_refused_within_the_limits(layers: list[list[bytes]], what: str, tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match=what) as caught:
        unpacked(tmp_path, *([*one, end()] for one in layers))
    assert caught.value.code == 2
    written = [path for path in (tmp_path / "out").rglob("*") if path.name != ".layer-0"]
    assert len(written) <= 100 and sum(path.stat().st_size for path in written if path.is_file()) <= 5 * MIB


@pytest.mark.parametrize(
    ("before", "entry", "what"),
    [
        ([*member(b"g", 12, [b"12 path=zzz\n"], b"g")], PLAIN, "says the path of every file"),
        ([*member(b"g", 10, [b"10 size=0\n"], b"g")], PLAIN, "says the size of every file"),
        ([*member(b"g", 16, [b"16 linkpath=zzz\n"], b"g")], PLAIN, "says the linkpath of every file"),
        ([*member(b"g", 11, [b"11 mtime=1\n"], b"g")], PLAIN, "says the mtime of every file"),
        ([*member(b"g", 23, [b"23 GNU.sparse.name=zzz\n"], b"g")], PLAIN, "is a sparse file"),
        ([pax(b"GNU.sparse.name", b"zzz")], PLAIN, "'opt/patched/f' is a sparse file"),
        ([pax(b"GNU.sparse.realsize", b"1")], PLAIN, "'opt/patched/f' is a sparse file"),
        ([pax(b"path", b"zzz"), pax(b"comment", b"c")], PLAIN, "extended headers"),
        ([pax(b"path", b"zzz"), *member(b"L", 2, [b"f\0"], b"L")], PLAIN, "extended headers"),
        ([*member(b"L", 2, [b"z\0"], b"L"), *member(b"L", 2, [b"f\0"], b"L")], PLAIN, "extended headers"),
        ([pax(b"path", b"zzz"), *member(b"g", 6, [b"6 k=v\n"], b"g")], PLAIN, "extended headers"),
        ([pax(b"size", b"")], [*member(b"usr/f", 1024, PLAIN)], "says an empty size of 'usr/f'"),
        ([pax(b"path", b"usr/f")], [*member(b"usr/f/", 1024, PLAIN, b"\0")], "extended headers"),
        ([pax(b"path", OURS + b"f/")], [*member(b"usr/f", 3, [b"abc"], b"\0")], "extended headers"),
    ],
)
def test_a_header_that_engines_read_in_another_way_is_refused(
    before: list[bytes], entry: list[bytes], what: str, tmp_path: Path
) -> None:
    """tarfile would put the file elsewhere, or read a part of it as the next header: as podman 4.3 was seen not to."""
    with pytest.raises(WrongUse, match=what) as caught:
        unpacked(tmp_path, [*before, *entry, end()])
    assert caught.value.code == 2


@pytest.mark.parametrize(
    "before",
    [
        [*member(b"g", 13, [b"13 comment=c\n"], b"g"), pax(b"path", OURS + b"f")],
        [*member(b"K", 2, [b"z\0"], b"K"), *member(b"L", 14, [OURS + b"f\0"], b"L")],
    ],
    ids=["a commit and a path", "a long link and a long name"],
)
def test_headers_that_engines_read_alike_are_read(before: list[bytes], tmp_path: Path) -> None:
    to = unpacked(tmp_path, [*before, *member(b"short", 3, [b"abc"]), end()])
    assert (to / "opt/patched/f").read_bytes() == b"abc"


def test_the_hint_names_the_limit(tmp_path: Path) -> None:
    with pytest.raises(WrongUse) as caught:
        unpacked(tmp_path, [*files(60), end()])
    assert caught.value.hint and "`images: {names: N}`" in caught.value.hint


@pytest.mark.parametrize("cut", [lambda data: data[:-20], lambda data: data[:40] + b"\xff" * 40 + data[80:]])
def test_a_damaged_layer_is_one_error(cut: object, tmp_path: Path) -> None:
    assert callable(cut)
    noise = hashlib.shake_256(b"1").digest(MIB)
    image_of(tmp_path / "image.tar", cut(gzip.compress(b"".join([*member(OURS + b"f", MIB, [noise]), end()]))))
    with pytest.raises(WrongUse, match="not an image that can be read"):
        read(tmp_path / "image.tar", tmp_path / "out")


def test_an_archive_of_many_names_is_not_kept_in_memory(tmp_path: Path) -> None:
    (tmp_path / "image.tar").write_bytes(b"".join([*files(60), end()]))
    with pytest.raises(WrongUse, match="more than 50 names"):
        read(tmp_path / "image.tar", tmp_path / "out")


def test_what_is_within_the_limits_is_unpacked(tmp_path: Path) -> None:
    """Zeros elsewhere count for nothing below the free 64 MiB, and a layer may be packed in several parts, as eStargz does it."""
    parts = [b"".join(PLAIN), b"".join(member(b"usr/f", 32 * MIB, zeros(32 * MIB))), end()]
    image_of(tmp_path / "image.tar", b"".join(gzip.compress(one) for one in parts))
    assert (read(tmp_path / "image.tar", tmp_path / "out") / "opt/patched/f").read_bytes() == b"abc"
