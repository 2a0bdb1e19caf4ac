"""Archives with one fault each, built here: refused with the member's name, before anything is written."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from source_builders import IndexServer, demo_stack, demo_upstream, sha256

from patchctl.errors import SourceMismatch
from patchctl.manifest.types import Sdist
from patchctl.source.archive import read_archive
from patchctl.source.obtain import obtain_form
from patchctl.source.places import IndexConfig
from patchctl.source.types import ArchiveLimits, SourceOptions
from patchctl.terminal.progress import Progress

pytestmark = pytest.mark.family("Archives")

BLOCK = 512
END = bytes(2 * BLOCK)


def header(name: bytes, size: int = 0, kind: bytes = b"0", **fields: bytes) -> bytes:
    """A ustar header written by hand, so that it can say what no library would write."""
    size_text = fields.get("size_field", b"%011o\0" % size)
    block = bytearray(BLOCK)
    block[:100] = name[:100].ljust(100, b"\0")
    block[100:108] = fields.get("mode", b"0000644\0")
    block[108:124] = b"0000000\0" * 2
    block[124:136] = size_text.ljust(12, b"\0")
    block[136:148] = b"00000000000\0"
    block[148:156] = b" " * 8
    block[156:157] = kind
    block[157:257] = fields.get("link", b"").ljust(100, b"\0")
    block[257:265] = b"ustar\00000"
    block[345:500] = fields.get("prefix", b"").ljust(155, b"\0")
    block[148:156] = fields.get("checksum", b"%06o\0 " % sum(block))
    return bytes(block)


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % BLOCK)


def file(name: bytes, data: bytes = b"x\n", **fields: bytes) -> bytes:
    return header(name, len(data), **fields) + padded(data)


def pax(kind: bytes = b"x", **records: bytes) -> bytes:
    lines = b""
    for key, value in records.items():
        rest = b" " + key.encode() + b"=" + value + b"\n"
        length = len(rest) + 1
        while length != len(str(length)) + len(rest):
            length += 1
        lines += str(length).encode() + rest
    return header(b"pax", len(lines), kind) + padded(lines)


GOOD = file(b"demo-1.0/a.py")
TAR_FAULTS: dict[str, tuple[bytes, str, str]] = {
    # what it is called: (tar stream, member named in the message, reason)
    "symbolic_link": (GOOD + header(b"demo-1.0/l", kind=b"2", link=b"/etc/passwd"), "demo-1.0/l", "symbolic link"),
    "hard_link": (GOOD + header(b"demo-1.0/l", kind=b"1", link=b"demo-1.0/a.py"), "demo-1.0/l", "hard link"),
    "device": (GOOD + header(b"demo-1.0/d", kind=b"3"), "demo-1.0/d", "character device"),
    "named_pipe": (GOOD + header(b"demo-1.0/p", kind=b"6"), "demo-1.0/p", "named pipe"),
    "sparse": (GOOD + header(b"demo-1.0/s", kind=b"S"), "demo-1.0/s", "sparse"),
    "pax_sparse": (GOOD + pax(**{"GNU.sparse.major": b"1"}) + file(b"demo-1.0/s"), "demo-1.0/s", "sparse"),
    "unknown_kind": (GOOD + header(b"demo-1.0/u", kind=b"Z"), "demo-1.0/u", "unknown type"),
    "absolute": (GOOD + file(b"/etc/cron.d/x"), "/etc/cron.d/x", "absolute"),
    "parent": (GOOD + file(b"demo-1.0/../../x"), "demo-1.0/../../x", "leaves the tree"),
    "dot": (GOOD + file(b"demo-1.0/./x"), "demo-1.0/./x", "leaves the tree"),
    "empty_part": (GOOD + file(b"demo-1.0//x"), "demo-1.0//x", "empty component"),
    "backslash": (GOOD + file(b"demo-1.0\\..\\x"), "demo-1.0", "backslash"),
    "drive": (GOOD + file(b"c:/x"), "c:/x", "absolute"),
    "parent_in_pax_path": (GOOD + pax(path=b"demo-1.0/../../x") + file(b"demo-1.0/ok"), "../x", "leaves the tree"),
    "parent_in_gnu_name": (
        GOOD + file(b"././@LongLink", b"../x\0", kind=b"L") + file(b"ok"),
        "../x",
        "leaves the tree",
    ),
    "parent_in_prefix": (GOOD + file(b"x", prefix=b"../.."), "../../x", "leaves the tree"),
    "git_folder": (GOOD + file(b"demo-1.0/.git/hooks/post-checkout"), ".git/hooks", "inside .git"),
    "git_folder_in_capitals": (GOOD + file(b"demo-1.0/.GIT/config"), ".GIT/config", "inside .git"),
    "git_folder_short_name": (GOOD + file(b"demo-1.0/GIT~1/config"), "GIT~1/config", "inside .git"),
    "git_folder_trailing_dot": (GOOD + file(b"demo-1.0/.git./config"), ".git./config", "inside .git"),
    "git_folder_ignored_code_point": (GOOD + file("demo-1.0/.g\u200cit/config".encode()), "it/config", "formatting"),
    "control_character": (GOOD + file(b"demo-1.0/a\x1b[2Jb"), "demo-1.0/a\\x1b[2Jb", "control"),
    "newline": (GOOD + file(b"demo-1.0/a\nb"), "demo-1.0/a\\nb", "control"),
    "bidirectional_mark": (GOOD + file("demo-1.0/a\u202eb".encode()), "a\\u202eb", "formatting"),
    "not_utf8": (GOOD + file(b"demo-1.0/a\xffb"), "demo-1.0/a\\xffb", "not UTF-8"),
    "nul_in_pax_path": (GOOD + pax(path=b"demo-1.0/a\0b") + file(b"demo-1.0/ok"), "", "damaged"),
    "long_part": (GOOD + pax(path=b"demo-1.0/" + b"n" * 256) + file(b"x"), "nnn", "255 bytes"),
    "long_name": (GOOD + pax(path=b"demo-1.0/" + b"n/" * 600 + b"n") + file(b"x"), "demo-1.0/n/", "1024 bytes"),
    "windows_device": (GOOD + file(b"demo-1.0/aux.py"), "demo-1.0/aux.py", "device on Windows"),
    "twice": (GOOD + GOOD, "demo-1.0/a.py", "duplicate"),
    "differs_in_case": (GOOD + file(b"demo-1.0/A.py"), "demo-1.0/A.py", "demo-1.0/a.py"),
    "folder_differs_in_case": (GOOD + file(b"demo-1.0/d/x") + file(b"demo-1.0/D/y"), "demo-1.0/D/y", "case"),
    "differs_in_unicode_form": (
        GOOD + file("demo-1.0/\u00e9".encode()) + file("demo-1.0/e\u0301".encode()),
        "e\u0301",
        "Unicode form",
    ),
    "file_and_folder": (GOOD + file(b"demo-1.0/a.py/x"), "demo-1.0/a.py/x", "a file and a folder"),
    "two_top_folders": (GOOD + file(b"other/x"), "other/x", "top folder demo-1.0"),
    "beside_the_top_folder": (file(b"loose.py"), "loose.py", "not inside the top folder"),
    "no_file": (header(b"demo-1.0/", kind=b"5"), "", "no file"),
    "nothing": (b"", "", "no file"),
    "folder_with_content": (header(b"demo-1.0/", 5, b"5") + padded(b"12345"), "demo-1.0/", "folder with content"),
    "negative_size": (GOOD + header(b"demo-1.0/n", size_field=b"\xff" * 12), "", "negative"),
    "size_no_number": (GOOD + header(b"demo-1.0/n", size_field=b"-1"), "", "invalid or negative"),
    "pax_size_no_number": (GOOD + pax(size=b"-1") + file(b"demo-1.0/n"), "demo-1.0/n", "invalid size"),
    "huge_size": (GOOD + header(b"demo-1.0/h", size_field=b"\x80" + b"\x7f" * 11), "demo-1.0/h", "the limit is"),
    "huge_pax_header": (GOOD + header(b"pax", 1 << 30, b"x"), "", "the limit is"),
    "pax_size_hides_a_member": (
        GOOD + pax(size=b"0") + file(b"demo-1.0/n", b"not a header" * 50),
        "",
        "invalid or negative",
    ),
    "global_path": (GOOD + pax(b"g", path=b"demo-1.0/x") + file(b"demo-1.0/n"), "", "global"),
    "pax_size_of_5000_digits": (GOOD + pax(size=b"1" * 5000) + file(b"demo-1.0/n"), "demo-1.0/n", "invalid size"),
    "pax_size_of_other_digits": (
        GOOD + pax(size="\u0661".encode()) + file(b"demo-1.0/n"),
        "demo-1.0/n",
        "invalid size",
    ),
    "pax_size_empty": (GOOD + pax(size=b"") + file(b"demo-1.0/n"), "demo-1.0/n", "invalid size"),
    "pax_length_of_5000_digits": (GOOD + header(b"pax", 5007, b"x") + padded(b"9" * 5000 + b" path=x"), "", "damaged"),
    "pax_length_negative": (GOOD + header(b"pax", 10, b"x") + padded(b"-5 path=x\n"), "", "damaged"),
    "pax_without_end_of_line": (GOOD + header(b"pax", 9, b"x") + padded(b"9 path=xy"), "", "damaged"),
    "pax_path_empty": (pax(path=b"") + file(b""), "", "empty component"),
    "two_pax_headers": (
        GOOD + pax(path=b"demo-1.0/x") + pax(path=b"demo-1.0/y") + file(b"z"),
        "",
        "duplicate extended header",
    ),
    "two_long_names": (
        GOOD + 2 * file(b"././@LongLink", b"demo-1.0/y\0", kind=b"L") + file(b"z"),
        "",
        "duplicate extended header",
    ),
    "long_name_of_2_mib": (GOOD + header(b"././@LongLink", 2 << 20, kind=b"L"), "", "the limit is"),
    "long_name_cut": (GOOD + header(b"././@LongLink", 600, kind=b"L") + bytes(512), "", "truncated"),
    "global_size": (GOOD + pax(b"g", size=b"0") + file(b"demo-1.0/n"), "", "global"),
    "gnu_sparse_name": (
        GOOD + pax(**{"GNU.sparse.name": b"../x"}) + file(b"demo-1.0/s"),
        "demo-1.0/s",
        "sparse",
    ),
    "link_then_file_through_it": (
        GOOD + header(b"demo-1.0/l", kind=b"2", link=b"/tmp") + file(b"demo-1.0/l/x"),
        "demo-1.0/l",
        "symbolic link",
    ),
    "long_link_then_file_through_it": (  # CVE-2025-4517: a chain of links whose full path is over PATH_MAX
        GOOD
        + header(b"demo-1.0/" + b"d" * 80, kind=b"5")
        + header(b"demo-1.0/a", kind=b"2", link=b"d" * 80)
        + header(b"demo-1.0/e", kind=b"2", link=b"a/" * 40)
        + file(b"demo-1.0/e/../../x"),
        "demo-1.0/a",
        "symbolic link",
    ),
    "hard_link_to_a_link": (  # CVE-2025-4330
        GOOD + header(b"demo-1.0/h", kind=b"1", link=b"demo-1.0/../../etc/passwd"),
        "demo-1.0/h",
        "hard link",
    ),
    "link_whose_target_is_below_itself": (  # CVE-2025-4138
        GOOD + header(b"demo-1.0/l", kind=b"2", link=b"l/../../outside"),
        "demo-1.0/l",
        "symbolic link",
    ),
    "folder_mode_outside": (header(b"../out/", kind=b"5", mode=b"0000777\0") + GOOD, "../out", "leaves the tree"),
    "contiguous_file": (GOOD + header(b"demo-1.0/c", kind=b"7"), "demo-1.0/c", "unknown type"),
    "block_device": (GOOD + header(b"demo-1.0/b", kind=b"4"), "demo-1.0/b", "block device"),
    "multi_volume": (GOOD + header(b"demo-1.0/m", kind=b"M"), "demo-1.0/m", "a part of a file"),
    "folder_then_file": (
        header(b"demo-1.0/d/", kind=b"5") + file(b"demo-1.0/d"),
        "demo-1.0/d",
        "duplicate member",
    ),
    "pax_length_wrong": (GOOD + header(b"pax", 9, b"x") + padded(b"99 path=x"), "", "damaged"),
    "pax_length_zero": (GOOD + header(b"pax", 9, b"x") + padded(b"0 path=x\n"), "", "damaged"),
    "checksum": (GOOD + header(b"demo-1.0/c", checksum=b"000000\0 "), "", "checksum"),
    "more_after_the_end": (GOOD + END + file(b"demo-1.0/hidden.py"), "", "after the end of the archive"),
    "one_zero_block": (GOOD + bytes(BLOCK) + file(b"demo-1.0/hidden.py"), "", "after the end of the archive"),
}


def refused(
    content: bytes, folder: Path, digest: str | None = None, limits: ArchiveLimits | None = None
) -> SourceMismatch:
    folder.mkdir(exist_ok=True)
    path = folder / "archive"
    path.write_bytes(content)
    before = sorted(folder.rglob("*"))
    with pytest.raises(SourceMismatch) as caught:
        list(read_archive(path, digest or sha256(content), limits))
    assert sorted(folder.rglob("*")) == before
    assert caught.value.code == 3
    assert str(caught.value).startswith(str(path))
    assert str(caught.value).isprintable()
    return caught.value


@pytest.mark.parametrize("fault", TAR_FAULTS)
def test_a_tar_archive_with_this_fault_is_refused(fault: str, tmp_path: Path) -> None:
    stream, member, reason = TAR_FAULTS[fault]
    error = refused(gzip.compress(stream + END), tmp_path)
    assert reason in error.what
    assert member in error.what
    assert "member" in error.what or not member


def test_the_archive_that_the_faults_are_added_to_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "good"
    path.write_bytes(gzip.compress(GOOD + file(b"demo-1.0/.gitattributes") + file(b"demo-1.0/sub/.gitmodules") + END))
    assert [f.path for f in read_archive(path, sha256(path.read_bytes()))] == [
        b"a.py",
        b".gitattributes",
        b"sub/.gitmodules",
    ]


GZIP_FAULTS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut": (lambda data: data[:-20], "truncated"),
    "changed": (lambda data: data[:-6] + b"\0\0" + data[-4:], "damaged"),
    "second_member": (lambda data: data + gzip.compress(b"more"), "after the compressed data"),
    "trailing_bytes": (lambda data: data + b"more", "after the compressed data"),
    "not_gzip": (lambda data: b"BZh" + data, "neither"),
    "empty": (lambda data: b"", "neither"),
    "header_only": (lambda data: data[:10], "truncated"),
}


@pytest.mark.parametrize("fault", GZIP_FAULTS)
def test_damaged_compression_is_refused(fault: str, tmp_path: Path) -> None:
    damage, reason = GZIP_FAULTS[fault]
    assert reason in refused(damage(gzip.compress(GOOD + END)), tmp_path).what


@pytest.mark.parametrize("limits", [ArchiveLimits(unpacked_mib=8), ArchiveLimits(unpacked_mib=63)])
def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, limits: ArchiveLimits) -> None:
    raw = io.BytesIO()
    with gzip.GzipFile(fileobj=raw, mode="wb") as out:
        for number in range(64):
            out.write(file(b"demo-1.0/f%d" % number, bytes(1 << 20)))
        out.write(END)
    assert len(raw.getvalue()) < 100_000
    error = refused(raw.getvalue(), tmp_path, limits=limits)
    assert f"unpacks to more than {limits.unpacked_mib} MiB" in error.what
    assert "unpacked_mib" in (error.hint or "")


def test_a_ratio_is_refused(tmp_path: Path) -> None:
    content = gzip.compress(b"".join(file(b"demo-1.0/f%d" % n, bytes(8 << 20)) for n in range(9)) + END)
    error = refused(content, tmp_path)
    assert f"more than 100 times its {len(content)} bytes" in error.what and "ratio" in (error.hint or "")
    path = tmp_path / "taken"
    path.write_bytes(content)
    assert len(list(read_archive(path, sha256(content), ArchiveLimits(ratio=2000)))) == 9


def test_too_many_names_are_refused(tmp_path: Path) -> None:
    stream = b"".join(file(b"demo-1.0/f%d" % number, b"") for number in range(200))
    for content in (gzip.compress(stream + END), zipped(*((f"demo-1.0/f{n}", b"", 0o100644) for n in range(200)))):
        assert "more than 100 names" in refused(content, tmp_path, limits=ArchiveLimits(names=100)).what


def test_a_file_over_the_limit_is_refused(tmp_path: Path) -> None:
    for content in (
        gzip.compress(file(b"demo-1.0/f", bytes(2 << 20)) + END),
        zipped(("demo-1.0/f", bytes(2 << 20), 0)),
    ):
        error = refused(content, tmp_path, limits=ArchiveLimits(file_mib=1))
        assert "demo-1.0/f: announces 2097152 bytes" in error.what and "file_mib" in (error.hint or "")


def test_an_archive_over_the_limit_is_refused(tmp_path: Path) -> None:
    error = refused(gzip.compress(GOOD + END), tmp_path, limits=ArchiveLimits(packed_mib=0))
    assert "larger than" in error.what and "packed_mib" in (error.hint or "")


def test_another_digest_is_refused_before_anything_is_parsed(tmp_path: Path) -> None:
    error = refused(b"\x1f\x8b garbage", tmp_path, digest="0" * 64)
    assert "sha256" in error.what and "0" * 64 in error.what


def zipped(*entries: tuple[str, bytes, int]) -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as out:
        for name, data, mode in entries:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            out.writestr(info, data)
    return raw.getvalue()


ZIP_GOOD = ("demo-1.0/a.py", b"x\n", 0o100644)


def _lying_size() -> bytes:
    data = bytearray(zipped(("demo-1.0/a.py", bytes(1 << 16), 0o100644)))
    at = data.index(b"PK\x01\x02") + 24
    data[at : at + 4] = struct.pack("<I", 10)
    return bytes(data)


def _encrypted() -> bytes:
    data = bytearray(zipped(ZIP_GOOD))
    data[data.index(b"PK\x01\x02") + 8] |= 1
    return bytes(data)


def _wrong_crc() -> bytes:
    data = bytearray(zipped(ZIP_GOOD))
    at = data.index(b"PK\x01\x02") + 16
    data[at : at + 4] = struct.pack("<I", zlib.crc32(b"other"))
    return bytes(data)


def _other_local_name() -> bytes:
    data = zipped(ZIP_GOOD)
    at = data.index(b"demo-1.0/a.py")
    return data[:at] + b"demo-1.0/b.py" + data[at + 13 :]


ZIP_FAULTS: dict[str, tuple[bytes, str]] = {
    "symbolic_link": (zipped(ZIP_GOOD, ("demo-1.0/l", b"/etc/passwd", 0o120777)), "demo-1.0/l: a link"),
    "parent": (zipped(ZIP_GOOD, ("demo-1.0/../../x", b"x", 0o100644)), "leaves the tree"),
    "absolute": (zipped(ZIP_GOOD, ("/etc/x", b"x", 0o100644)), "absolute"),
    "two_top_folders": (zipped(ZIP_GOOD, ("other/x", b"x", 0o100644)), "top folder"),
    "git_folder": (zipped(ZIP_GOOD, ("demo-1.0/.git/config", b"x", 0o100644)), "inside .git"),
    "folder_with_content": (zipped(ZIP_GOOD, ("demo-1.0/d/", b"x", 0o40755)), "folder with content"),
    "lying_size": (_lying_size(), "demo-1.0/a.py"),
    "encrypted": (_encrypted(), "encrypted"),
    "wrong_crc": (_wrong_crc(), "damaged"),
    "other_local_name": (_other_local_name(), "damaged"),
    "cut": (zipped(ZIP_GOOD)[:-30], "damaged"),
}


@pytest.mark.parametrize("fault", ZIP_FAULTS)
def test_a_zip_archive_with_this_fault_is_refused(fault: str, tmp_path: Path) -> None:
    content, reason = ZIP_FAULTS[fault]
    assert reason in refused(content, tmp_path).what


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_zip_archive_with_a_name_twice_is_refused(tmp_path: Path) -> None:
    assert "duplicate" in refused(zipped(ZIP_GOOD, ZIP_GOOD), tmp_path).what


def test_a_pinned_hostile_archive_never_reaches_the_cache(
    index: IndexServer, options: SourceOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way: the digest is right, because whoever wrote the manifest pinned this very archive."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as out:
        link = tarfile.TarInfo("demo-1.0/link")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
        out.addfile(link)
        through = tarfile.TarInfo("demo-1.0/link/pwned")
        through.size = 1
        out.addfile(through, io.BytesIO(b"x"))
    index.offer("demo-1.0.tar.gz", raw.getvalue())
    monkeypatch.setattr("patchctl.source.package_index.machine_config", lambda: IndexConfig((index.simple,)))
    stack = demo_stack(sdist=Sdist(version="1.0", sha256=sha256(raw.getvalue())))
    with pytest.raises(SourceMismatch, match=r"demo-1\.0/link: a symbolic link"):
        obtain_form("sdist", demo_upstream(sdist="demo"), stack, options, Progress())
    assert not (options.cache / "sdist").exists() and not (tmp_path / "pwned").exists()
