"""From a source distribution's bytes to the files in it, checked member by member; nothing is unpacked to the disk."""

from __future__ import annotations

import hashlib
import io
import stat
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from patchctl.errors import SourceMismatch
from patchctl.git.objects import EXECUTABLE, REGULAR
from patchctl.patch.names import collision_key, why_refused
from patchctl.report.text import visible_line
from patchctl.source.cache import REFRESH
from patchctl.source.tarball import BadArchive, Member, members

# Generous against the largest that we carry (vllm 0.14.1: 20 MB packed, 49 MB unpacked, 3,750 files, 145 bytes a name).
ARCHIVE_LIMIT = 1 << 30
TOTAL_LIMIT = 4 << 30
FILE_LIMIT = 256 << 20
COUNT_LIMIT = 500_000
NAME_LIMIT = 1024
# Patches may not touch these; a source distribution brings upstream's own.
_GIT_OWN = (b".gitattributes", b".gitmodules")
_CHUNK = 1 << 20


@dataclass(frozen=True)
class ArchivedFile:
    """A file of the archive; `path` is relative to the one top folder, `mode` is git's."""

    path: bytes
    mode: int
    data: bytes


def read_archive(archive: Path, sha256: str) -> list[ArchivedFile]:
    """Every regular file of a .tar.gz or .zip, after its digest was found to be `sha256`.

    The bytes are read once, so that what was hashed is what is parsed. Raises SourceMismatch naming archive and member.
    """
    if archive.stat().st_size > ARCHIVE_LIMIT:
        raise SourceMismatch(f"the archive is larger than {ARCHIVE_LIMIT} bytes", where=str(archive))
    content = archive.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise SourceMismatch(
            f"the archive's sha256 is {found}, and {sha256} is pinned", where=str(archive), hint=REFRESH
        )
    try:
        return _checked(_members(content))
    except BadArchive as fault:
        named = f"member {visible_line(fault.member.decode('utf-8', 'backslashreplace'))}: " if fault.member else ""
        raise SourceMismatch(
            f"{named}{fault.reason}",
            where=str(archive),
            hint="this archive was pinned by whoever wrote the manifest; it is not one that patchctl unpacks",
        ) from fault


def _members(content: bytes) -> Iterator[Member]:
    if content.startswith(b"\x1f\x8b"):
        return members(_Gunzip(content), FILE_LIMIT)
    if content.startswith(b"PK\x03\x04"):
        return _zip_members(content)
    raise BadArchive("it is neither a gzipped tar archive nor a zip archive")


class _Gunzip:
    """One gzip member, unpacked as it is asked for, up to TOTAL_LIMIT."""

    def __init__(self, content: bytes) -> None:
        self._unpack = zlib.decompressobj(wbits=31)
        self._rest: bytes = content
        self._ready = bytearray()
        self._total = 0

    def read(self, n: int) -> bytes:
        while len(self._ready) < n and not self._unpack.eof:
            self._more()
        data = bytes(self._ready[:n])
        del self._ready[:n]
        return data

    def _more(self) -> None:
        try:
            chunk = self._unpack.decompress(self._rest, _CHUNK)
        except zlib.error as error:
            raise BadArchive(f"its compression is damaged: {error}") from error
        self._rest = self._unpack.unconsumed_tail
        if self._unpack.eof and self._unpack.unused_data.strip(b"\0"):
            raise BadArchive("there is more after the end of the compressed data")
        if not chunk and not self._unpack.eof:
            raise BadArchive("the archive ends in the middle")
        self._total += len(chunk)
        if self._total > TOTAL_LIMIT:
            raise BadArchive(f"it unpacks to more than {TOTAL_LIMIT} bytes")
        self._ready += chunk


def _zip_members(content: bytes) -> Iterator[Member]:
    import zipfile

    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if sum(info.file_size for info in archive.infolist()) > TOTAL_LIMIT:
                raise BadArchive(f"it unpacks to more than {TOTAL_LIMIT} bytes")
            for info in archive.infolist():
                yield _zip_member(archive, info)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise BadArchive(f"the zip archive is damaged: {error}") from error


def _zip_member(archive: object, info: object) -> Member:
    import zipfile

    assert isinstance(archive, zipfile.ZipFile) and isinstance(info, zipfile.ZipInfo)
    name = info.orig_filename.encode("utf-8", "surrogateescape")
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise BadArchive("it is a link or a device; only regular files and folders are taken", name)
    if info.flag_bits & 0x1:
        raise BadArchive("it is encrypted", name)
    mode = (info.external_attr >> 16) & 0o7777
    if name.endswith(b"/"):
        if info.file_size:
            raise BadArchive("it is a folder with content", name)
        return Member(name.removesuffix(b"/"), mode, None)
    if info.file_size > FILE_LIMIT:
        raise BadArchive(f"it says that it holds {info.file_size} bytes; at most {FILE_LIMIT} are taken", name)
    with archive.open(info) as stream:
        data = stream.read(info.file_size + 1)
    if len(data) != info.file_size:
        raise BadArchive("its size is not what the archive says", name)
    return Member(name, mode, data)


def _checked(found: Iterator[Member]) -> list[ArchivedFile]:
    files: list[ArchivedFile] = []
    names = _Names()
    for member in found:
        names.take(member)
        if member.data is not None:
            inner = member.name.partition(b"/")[2]
            if not inner:
                raise BadArchive("it lies beside the top folder", member.name)
            files.append(ArchivedFile(inner, EXECUTABLE if member.mode & stat.S_IXUSR else REGULAR, member.data))
    if not files:
        raise BadArchive("it holds no file")
    return files


class _Names:
    """The names seen so far, and the rules between them: one top folder, no name twice, none that another one hides."""

    def __init__(self) -> None:
        self._top: bytes | None = None
        self._is_file: dict[bytes, bool] = {}
        self._by_key: dict[str, bytes] = {}

    def take(self, member: Member) -> None:
        name = member.name
        if len(self._is_file) > COUNT_LIMIT:
            raise BadArchive(f"it holds more than {COUNT_LIMIT} names")
        if len(name) > NAME_LIMIT:
            raise BadArchive(f"its name is longer than {NAME_LIMIT} bytes", name[:100])
        parts = name.split(b"/")
        reason = why_refused(b"/".join(p for p in parts if p not in _GIT_OWN) or parts[0])
        if reason:
            raise BadArchive(reason, name)
        if self._top is None:
            self._top = parts[0]
        if parts[0] != self._top:
            raise BadArchive(f"it does not lie in the top folder {visible_line(self._top.decode())}", name)
        for end in range(1, len(parts)):
            self._note(b"/".join(parts[:end]), name, is_file=False)
        if member.data is not None and name in self._is_file:
            raise BadArchive("it is there twice", name)
        self._note(name, name, is_file=member.data is not None)

    def _note(self, path: bytes, member: bytes, *, is_file: bool) -> None:
        known = self._is_file.setdefault(path, is_file)
        if known != is_file:
            raise BadArchive("one name is a file and a folder", member)
        other = self._by_key.setdefault(collision_key(path), path)
        if other != path:
            shown = visible_line(other.decode("utf-8", "backslashreplace"))
            raise BadArchive(f"it is one file with {shown} where case or Unicode form is ignored", member)
