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
from patchctl.report.progress import SilentProgress
from patchctl.source import archive as archive_module
from patchctl.source import pipconfig
from patchctl.source.archive import read_archive
from patchctl.source.obtain import obtain_form
from patchctl.source.types import SourceOptions

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
    "unknown_kind": (GOOD + header(b"demo-1.0/u", kind=b"Z"), "demo-1.0/u", "unknown kind"),
    "absolute": (GOOD + file(b"/etc/cron.d/x"), "/etc/cron.d/x", "absolute"),
    "parent": (GOOD + file(b"demo-1.0/../../x"), "demo-1.0/../../x", "leaves the tree"),
    "dot": (GOOD + file(b"demo-1.0/./x"), "demo-1.0/./x", "leaves the tree"),
    "empty_part": (GOOD + file(b"demo-1.0//x"), "demo-1.0//x", "empty part"),
    "backslash": (GOOD + file(b"demo-1.0\\..\\x"), "demo-1.0", "backslash"),
    "drive": (GOOD + file(b"c:/x"), "c:/x", "absolute"),
    "parent_in_pax_path": (GOOD + pax(path=b"demo-1.0/../../x") + file(b"demo-1.0/ok"), "../x", "leaves the tree"),
    "parent_in_gnu_name": (GOOD + file(b"././@LongLink", b"../x\0", kind=b"L") + file(b"ok"), "../x", "leaves the tree"),
    "parent_in_prefix": (GOOD + file(b"x", prefix=b"../.."), "../../x", "leaves the tree"),
    "git_folder": (GOOD + file(b"demo-1.0/.git/hooks/post-checkout"), ".git/hooks", "lies in .git"),
    "git_folder_in_capitals": (GOOD + file(b"demo-1.0/.GIT/config"), ".GIT/config", "lies in .git"),
    "git_folder_short_name": (GOOD + file(b"demo-1.0/GIT~1/config"), "GIT~1/config", "lies in .git"),
    "git_folder_trailing_dot": (GOOD + file(b"demo-1.0/.git./config"), ".git./config", "lies in .git"),
    "git_folder_ignored_code_point": (GOOD + file("demo-1.0/.g\u200cit/config".encode()), "it/config", "formatting"),
    "control_character": (GOOD + file(b"demo-1.0/a\x1b[2Jb"), "demo-1.0/a\\x1b[2Jb", "control"),
    "newline": (GOOD + file(b"demo-1.0/a\nb"), "demo-1.0/a\\nb", "control"),
    "bidirectional_mark": (GOOD + file("demo-1.0/a\u202eb".encode()), "a\\u202eb", "formatting"),
    "not_utf8": (GOOD + file(b"demo-1.0/a\xffb"), "demo-1.0/a\\xffb", "not UTF-8"),
    "nul_in_pax_path": (GOOD + pax(path=b"demo-1.0/a\0b") + file(b"demo-1.0/ok"), "", "damaged"),
    "long_part": (GOOD + pax(path=b"demo-1.0/" + b"n" * 256) + file(b"x"), "nnn", "255 bytes"),
    "long_name": (GOOD + pax(path=b"demo-1.0/" + b"n/" * 600 + b"n") + file(b"x"), "demo-1.0/n/", "1024 bytes"),
    "windows_device": (GOOD + file(b"demo-1.0/aux.py"), "demo-1.0/aux.py", "device on Windows"),
    "twice": (GOOD + GOOD, "demo-1.0/a.py", "twice"),
    "differs_in_case": (GOOD + file(b"demo-1.0/A.py"), "demo-1.0/A.py", "demo-1.0/a.py"),
    "folder_differs_in_case": (GOOD + file(b"demo-1.0/d/x") + file(b"demo-1.0/D/y"), "demo-1.0/D/y", "case"),
    "differs_in_unicode_form": (
        GOOD + file("demo-1.0/\u00e9".encode()) + file("demo-1.0/e\u0301".encode()), "e\u0301", "Unicode form",
    ),
    "file_and_folder": (GOOD + file(b"demo-1.0/a.py/x"), "demo-1.0/a.py/x", "a file and a folder"),
    "two_top_folders": (GOOD + file(b"other/x"), "other/x", "top folder demo-1.0"),
    "beside_the_top_folder": (file(b"loose.py"), "loose.py", "beside the top folder"),
    "no_file": (header(b"demo-1.0/", kind=b"5"), "", "no file"),
    "nothing": (b"", "", "no file"),
    "folder_with_content": (header(b"demo-1.0/", 5, b"5") + padded(b"12345"), "demo-1.0/", "folder with content"),
    "negative_size": (GOOD + header(b"demo-1.0/n", size_field=b"\xff" * 12), "", "negative"),
    "size_no_number": (GOOD + header(b"demo-1.0/n", size_field=b"-1"), "", "no number"),
    "pax_size_no_number": (GOOD + pax(size=b"-1") + file(b"demo-1.0/n"), "demo-1.0/n", "not a number"),
    "huge_size": (GOOD + header(b"demo-1.0/h", size_field=b"\x80" + b"\x7f" * 11), "demo-1.0/h", "at most"),
    "huge_pax_header": (GOOD + header(b"pax", 1 << 30, b"x"), "", "at most"),
    "pax_size_hides_a_member": (
        GOOD + pax(size=b"0") + file(b"demo-1.0/n", b"not a header" * 50), "", "no number",
    ),
    "global_path": (GOOD + pax(b"g", path=b"demo-1.0/x") + file(b"demo-1.0/n"), "", "global"),
    "pax_length_wrong": (GOOD + header(b"pax", 9, b"x") + padded(b"99 path=x"), "", "damaged"),
    "pax_length_zero": (GOOD + header(b"pax", 9, b"x") + padded(b"0 path=x\n"), "", "damaged"),
    "checksum": (GOOD + header(b"demo-1.0/c", checksum=b"000000\0 "), "", "checksum"),
    "more_after_the_end": (GOOD + END + file(b"demo-1.0/hidden.py"), "", "after the archive's end"),
    "one_zero_block": (GOOD + bytes(BLOCK) + file(b"demo-1.0/hidden.py"), "", "after the archive's end"),
}  # fmt: skip


def refused(content: bytes, folder: Path, digest: str | None = None) -> SourceMismatch:
    folder.mkdir(exist_ok=True)
    path = folder / "archive"
    path.write_bytes(content)
    before = sorted(folder.rglob("*"))
    with pytest.raises(SourceMismatch) as caught:
        read_archive(path, digest or sha256(content))
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
        b"a.py", b".gitattributes", b"sub/.gitmodules",
    ]  # fmt: skip


GZIP_FAULTS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut": (lambda data: data[:-20], "ends in the middle"),
    "changed": (lambda data: data[:-6] + b"\0\0" + data[-4:], "damaged"),
    "second_member": (lambda data: data + gzip.compress(b"more"), "after the end of the compressed data"),
    "trailing_bytes": (lambda data: data + b"more", "after the end of the compressed data"),
    "not_gzip": (lambda data: b"BZh" + data, "neither"),
    "empty": (lambda data: b"", "neither"),
    "header_only": (lambda data: data[:10], "ends in the middle"),
}


@pytest.mark.parametrize("fault", GZIP_FAULTS)
def test_damaged_compression_is_refused(fault: str, tmp_path: Path) -> None:
    damage, reason = GZIP_FAULTS[fault]
    assert reason in refused(damage(gzip.compress(GOOD + END)), tmp_path).what


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_module, "TOTAL_LIMIT", 8 << 20)
    raw = io.BytesIO()
    with gzip.GzipFile(fileobj=raw, mode="wb") as out:
        for number in range(64):
            out.write(file(b"demo-1.0/f%d" % number, bytes(1 << 20)))
        out.write(END)
    assert len(raw.getvalue()) < 100_000
    assert "unpacks to more than" in refused(raw.getvalue(), tmp_path).what


def test_too_many_names_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_module, "COUNT_LIMIT", 100)
    stream = b"".join(file(b"demo-1.0/f%d" % number, b"") for number in range(200))
    assert "more than 100 names" in refused(gzip.compress(stream + END), tmp_path).what


def test_an_archive_over_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_module, "ARCHIVE_LIMIT", 10)
    assert "larger than" in refused(gzip.compress(GOOD + END), tmp_path).what


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
    "symbolic_link": (zipped(ZIP_GOOD, ("demo-1.0/l", b"/etc/passwd", 0o120777)), "demo-1.0/l: it is a link"),
    "parent": (zipped(ZIP_GOOD, ("demo-1.0/../../x", b"x", 0o100644)), "leaves the tree"),
    "absolute": (zipped(ZIP_GOOD, ("/etc/x", b"x", 0o100644)), "absolute"),
    "two_top_folders": (zipped(ZIP_GOOD, ("other/x", b"x", 0o100644)), "top folder"),
    "git_folder": (zipped(ZIP_GOOD, ("demo-1.0/.git/config", b"x", 0o100644)), "lies in .git"),
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
    assert "twice" in refused(zipped(ZIP_GOOD, ZIP_GOOD), tmp_path).what


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
    monkeypatch.setattr("patchctl.source.index.machine_config", lambda: pipconfig.IndexConfig((index.simple,)))
    stack = demo_stack(sdist=Sdist(version="1.0", sha256=sha256(raw.getvalue())))
    with pytest.raises(SourceMismatch, match=r"demo-1\.0/link: it is a symbolic link"):
        obtain_form("sdist", "demo", demo_upstream(sdist="demo"), stack, options, SilentProgress())
    assert not (options.cache / "sdist").exists() and not (tmp_path / "pwned").exists()
