"""Reads the files of a source distribution, checked member by member. Unpacks nothing to disk.

A tar stream is read strictly, and only what source distributions contain: POSIX.1-2001 pax and ustar, and GNU long names (`info tar`, "Basic
Tar Format"). Python's tarfile ends silently at a header it does not understand, loops on negative sizes (CVE-2025-8194), and its
extraction filters were bypassed more than once (CVE-2025-4138, -4330, -4435, -4517). Here a member is a regular file or a folder, and
every header must be complete with a correct checksum.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import zlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from patchctl.errors import SourceMismatch
from patchctl.git.objects import EXECUTABLE, REGULAR, TreeBuilder, TreeEntry, object_id
from patchctl.language import message
from patchctl.patch.names import GIT_OWN, collision_key, why_refused
from patchctl.source.cache import REFRESH
from patchctl.source.types import ArchiveLimits
from patchctl.terminal.text import visible_line

NAME_LIMIT = 1024
# The ratio limit starts here: a small archive of small files compresses better than a large one.
UNPACKED_FREE = 64 << 20
_PINNED = "the pinned archive is not one that patchctl accepts: check the pin in the stack's manifest"
_PIECE = 1 << 16
_CHUNK = 1 << 20
_MIB = 1 << 20
_CENTRAL = b"PK\x01\x02"
_CENTRAL_END = b"PK\x05\x06"
_CENTRAL_END_SIZE = 22
# setuptools appends this when it builds an sdist (setuptools/command/egg_info.py, save_version_info).
SETUPTOOLS_SETUP_CFG = b"[egg_info]\ntag_build = \ntag_date = 0\n\n"
BLOCK = 512
_EXTENSION_LIMIT = 1 << 20
_DIGITS = 20
_ZEROS = bytes(BLOCK)
_KINDS = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a character device",
    b"4": "a block device",
    b"6": "a named pipe",
    b"S": "a sparse file",
    b"M": "a part of a file",
    b"V": "a volume label",
}


@dataclass(frozen=True)
class ArchivedFile:
    """A file of the archive. `path` is relative to the single top folder, `mode` is git's."""

    path: bytes
    mode: int
    data: bytes


def read_archive(archive: Path, sha256: str, limits: ArchiveLimits | None = None) -> Iterator[ArchivedFile]:
    """Yield every regular file of a .tar.gz or .zip, one at a time, after checking its sha256.

    The packed bytes are read once and kept, so that what was hashed is what is parsed; unpacked, only one file is in
    memory. Raises SourceMismatch with archive and member, possibly after yielding files: callers must keep nothing
    until the end.
    """
    limits = limits or ArchiveLimits()
    largest = limits.packed_mib * _MIB
    with archive.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        content = b"" if size > largest else file.read(size)
    if size > largest:
        raise SourceMismatch(
            message("the archive is larger than {largest} bytes", largest=largest),
            where=str(archive),
            hint=raise_limit("archives", "packed_mib"),
        )
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise SourceMismatch(
            message("the archive's sha256 is {digest}, but {pinned} is pinned", digest=found, pinned=sha256),
            where=str(archive),
            hint=REFRESH,
        )
    return _files(archive, content, limits)


def _files(archive: Path, content: bytes, limits: ArchiveLimits) -> Iterator[ArchivedFile]:
    try:
        yield from _checked(_members(content, limits), limits.names)
    except BadArchive as fault:
        named = f"member {visible_line(fault.member.decode('utf-8', 'backslashreplace'))}: " if fault.member else ""
        raise SourceMismatch(
            f"{named}{fault.reason}",
            where=str(archive),
            hint=raise_limit("archives", fault.limit) if fault.limit else _PINNED,
        ) from fault


def raise_limit(section: str, limit: str) -> str:
    """Return the hint of an archive over a limit that the user's configuration has in this section."""
    return message(
        "if the archive is fine, raise the limit: `{section}: {{{limit}: N}}` in the user configuration (docs/hostile-input.md)",
        section=section,
        limit=limit,
    )


def _members(content: bytes, limits: ArchiveLimits) -> Iterator[TarMember]:
    if content.startswith(b"\x1f\x8b"):
        return members(_Gunzip(content, limits), limits.file_mib * _MIB)
    if content.startswith(b"PK\x03\x04"):
        return _zip_members(content, limits)
    raise BadArchive("neither a gzipped tar archive nor a zip archive")


def _check_total(unpacked: int, packed: int, limits: ArchiveLimits) -> None:
    if unpacked > limits.unpacked_mib * _MIB:
        raise BadArchive(f"it unpacks to more than {limits.unpacked_mib} MiB", limit="unpacked_mib")
    if unpacked > max(UNPACKED_FREE, limits.ratio * packed):
        raise BadArchive(f"it unpacks to more than {limits.ratio} times its {packed} bytes", limit="ratio")


class _Gunzip:
    """One gzip member, decompressed on demand up to the limits."""

    def __init__(self, content: bytes, limits: ArchiveLimits) -> None:
        self._unpack = zlib.decompressobj(wbits=31)
        self._packed = memoryview(content)
        self._limits = limits
        self._at = 0
        self._rest = b""
        self._ready = bytearray()
        self._total = 0

    def read(self, n: int) -> bytes:
        while len(self._ready) < n and not self._unpack.eof:
            self._more()
        data = bytes(self._ready[:n])
        del self._ready[:n]
        return data

    def _more(self) -> None:
        if not self._rest:
            self._rest = bytes(self._packed[self._at : self._at + _PIECE])
            self._at += len(self._rest)
            if not self._rest:
                raise BadArchive("the archive is truncated")
        try:
            chunk = self._unpack.decompress(self._rest, _CHUNK)
        except zlib.error as error:
            raise BadArchive(f"the compressed data is damaged: {error}") from error
        self._rest = self._unpack.unconsumed_tail
        if self._unpack.eof and (self._unpack.unused_data.strip(b"\0") or bytes(self._packed[self._at :]).strip(b"\0")):
            raise BadArchive("trailing data after the compressed data")
        self._total += len(chunk)
        _check_total(self._total, len(self._packed), self._limits)
        self._ready += chunk


def _zip_members(content: bytes, limits: ArchiveLimits) -> Iterator[TarMember]:
    import zipfile

    # Python's reader needs ten times an entry's 46 bytes.
    if content.count(_CENTRAL) > limits.names:
        raise BadArchive(f"more than {limits.names} names", limit="names")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            # Python searches backwards for the end record and ignores what follows it.
            if content.rfind(_CENTRAL_END) + _CENTRAL_END_SIZE + len(archive.comment) != len(content):
                raise BadArchive("trailing data after the end of the archive")
            _check_total(sum(info.file_size for info in archive.infolist()), len(content), limits)
            for info in archive.infolist():
                yield _zip_member(archive, info, limits.file_mib * _MIB)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise BadArchive(f"the zip archive is damaged: {error}") from error


def _zip_member(archive: object, info: object, file_limit: int) -> TarMember:
    import zipfile

    assert isinstance(archive, zipfile.ZipFile) and isinstance(info, zipfile.ZipInfo)
    name = info.orig_filename.encode("utf-8", "surrogateescape")
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise BadArchive("a link or device; only regular files and folders are allowed", name)
    if info.flag_bits & 0x1:
        raise BadArchive("encrypted", name)
    mode = (info.external_attr >> 16) & 0o7777
    if name.endswith(b"/"):
        if info.file_size:
            raise BadArchive("a folder with content", name)
        return TarMember(name.removesuffix(b"/"), mode, None)
    if info.compress_type not in (
        zipfile.ZIP_STORED,
        zipfile.ZIP_DEFLATED,
    ):  # Python decompresses other methods in one go
        raise BadArchive("neither stored nor deflated", name)
    if info.file_size > file_limit:
        raise BadArchive(f"announces {info.file_size} bytes; the limit is {file_limit}", name, limit="file_mib")
    with archive.open(info) as stream:
        data = stream.read(info.file_size + 1)
    if len(data) != info.file_size:
        raise BadArchive("its size differs from what the archive announces", name)
    return TarMember(name, mode, data)


def _checked(found: Iterator[TarMember], most: int) -> Iterator[ArchivedFile]:
    empty = True
    names = _Names(most)
    for member in found:
        names.take(member)
        if member.data is not None:
            inner = member.name.partition(b"/")[2]
            if not inner:
                raise BadArchive("not inside the top folder", member.name)
            empty = False
            yield ArchivedFile(inner, EXECUTABLE if member.mode & stat.S_IXUSR else REGULAR, member.data)
    if empty:
        raise BadArchive("no files")


class _Names:
    """The names seen so far and their rules: one top folder, no duplicates, no collisions."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._top: bytes | None = None
        self._is_file: dict[bytes, bool] = {}
        self._by_key: dict[str, bytes] = {}

    def take(self, member: TarMember) -> None:
        name = member.name
        if len(self._is_file) > self._most:
            raise BadArchive(f"more than {self._most} names", limit="names")
        if len(name) > NAME_LIMIT:
            raise BadArchive(f"its name is longer than {NAME_LIMIT} bytes", name[:100])
        parts = name.split(b"/")
        reason = why_refused(b"/".join(p for p in parts if p not in GIT_OWN) or parts[0])
        if reason:
            raise BadArchive(reason, name)
        if self._top is None:
            self._top = parts[0]
        if parts[0] != self._top:
            raise BadArchive(f"not inside the top folder {visible_line(self._top.decode())}", name)
        for end in range(1, len(parts)):
            self._note(b"/".join(parts[:end]), name, is_file=False)
        if member.data is not None and name in self._is_file:
            raise BadArchive("duplicate member", name)
        self._note(name, name, is_file=member.data is not None)

    def _note(self, path: bytes, member: bytes, *, is_file: bool) -> None:
        known = self._is_file.setdefault(path, is_file)
        if known != is_file:
            raise BadArchive("both a file and a folder", member)
        other = self._by_key.setdefault(collision_key(path), path)
        if other != path:
            shown = visible_line(other.decode("utf-8", "backslashreplace"))
            raise BadArchive(f"collides with {shown} where case or Unicode form is ignored", member)


def is_generated(file: ArchivedFile, declared: Collection[bytes]) -> bool:
    """Whether upstream's build wrote this file, so that no commit has it."""
    parts = file.path.split(b"/")
    if file.path == b"PKG-INFO" or any(part.endswith(b".egg-info") for part in parts[:-1]):
        return True
    if file.path == b"setup.cfg":
        return file.data == SETUPTOOLS_SETUP_CFG
    return file.path in declared


def tree_of(files: Iterable[ArchivedFile]) -> str:
    """Return the id of the tree of these files."""
    return TreeBuilder({f.path: TreeEntry(f.mode, object_id("blob", f.data)) for f in files}).write()


class BadArchive(Exception):
    """An archive that we do not accept. `member` is the member's name, `limit` the user setting it exceeds, if any."""

    def __init__(self, reason: str, member: bytes | None = None, *, limit: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.member = member
        self.limit = limit


class Stream(Protocol):
    """The unpacked bytes of an archive. `read` returns fewer than n bytes only at the end."""

    def read(self, n: int) -> bytes: ...


@dataclass(frozen=True)
class TarMember:
    """A regular file, or a folder if `data` is None. `mode` has the permission bits."""

    name: bytes
    mode: int
    data: bytes | None


def members(stream: Stream, file_limit: int) -> Iterator[TarMember]:
    """Yield the members of a tar stream. Raises BadArchive and reads nothing past an error."""
    extended: dict[bytes, bytes] = {}
    kinds: set[bytes] = set()
    while True:
        block = _exactly(stream, BLOCK)
        if block == _ZEROS:
            _check_end(stream)
            return
        _check_sum(block)
        kind = block[156:157]
        size = _number(block[124:136])
        if kind in (b"x", b"g", b"L", b"K"):
            if size > _EXTENSION_LIMIT:
                raise BadArchive(f"an extended header announces {size} bytes; the limit is {_EXTENSION_LIMIT}")
            if kind != b"g":  # one of each kind per member, or they could fill the memory
                if kind in kinds:
                    raise BadArchive("duplicate extended header for a member")
                kinds.add(kind)
            _take_extension(kind, _payload(stream, size, None), extended)
            continue
        yield _member(stream, block, kind, size, extended, file_limit)
        extended = {}
        kinds = set()


def _member(
    stream: Stream, block: bytes, kind: bytes, size: int, extended: dict[bytes, bytes], file_limit: int
) -> TarMember:
    name = extended.get(b"path") or _name(block)
    mode = _number(block[100:108]) & 0o7777
    if b"size" in extended:
        size = _decimal(extended[b"size"])
        if size < 0:
            raise BadArchive("invalid size", name)
    if any(key.startswith(b"GNU.sparse") for key in extended):
        raise BadArchive("a sparse file; only regular files and folders are allowed", name)
    if kind == b"5" or (kind == b"\0" and name.endswith(b"/")):
        if size:
            raise BadArchive("a folder with content", name)
        return TarMember(name.removesuffix(b"/"), mode, None)
    if kind not in (b"0", b"\0"):
        what = _KINDS.get(kind, f"a member of unknown type {kind!r}")
        raise BadArchive(f"{what}; only regular files and folders are allowed", name)
    if size > file_limit:
        raise BadArchive(f"announces {size} bytes; the limit is {file_limit}", name, limit="file_mib")
    return TarMember(name, mode, _payload(stream, size, name))


def _name(block: bytes) -> bytes:
    name = block[:100].split(b"\0", 1)[0]
    if block[257:263] == b"ustar\0":  # GNU's format has other fields in place of the prefix
        prefix = block[345:500].split(b"\0", 1)[0]
        if prefix:
            return prefix + b"/" + name
    return name


def _payload(stream: Stream, size: int, name: bytes | None) -> bytes:
    data = _exactly(stream, size, name)
    _exactly(stream, -size % BLOCK, name)
    return data


def _exactly(stream: Stream, n: int, name: bytes | None = None) -> bytes:
    data = stream.read(n) if n else b""
    if len(data) != n:
        raise BadArchive("the archive is truncated", name)
    return data


def _check_end(stream: Stream) -> None:
    """Check that only zeros follow the two end blocks: another reader could find more files there."""
    _exactly(stream, BLOCK)
    while chunk := stream.read(1 << 16):
        if chunk.strip(b"\0"):
            raise BadArchive("trailing data after the end of the archive")


def _check_sum(block: bytes) -> None:
    said = _number(block[148:156])
    if sum(block[:148]) + sum(block[156:]) + 8 * 0x20 != said:
        raise BadArchive("wrong header checksum")


def _number(field: bytes) -> int:
    """Parse octal digits ended by blank or NUL, or GNU's base 256. Negative numbers are refused."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.split(b"\0", 1)[0].strip(b" ")
    if field[0] & 0x80 or any(d not in b"01234567" for d in digits):
        raise BadArchive("invalid or negative number in a header")
    return int(digits or b"0", 8)


def _decimal(digits: bytes) -> int:
    """Return the number, or -1. Python's int() raises ValueError for 4,301 digits or more."""
    return int(digits) if digits.isdigit() and len(digits) <= _DIGITS else -1


def _take_extension(kind: bytes, data: bytes, extended: dict[bytes, bytes]) -> None:
    if kind == b"L":
        extended[b"path"] = data.split(b"\0", 1)[0]
    elif kind in (b"x", b"g"):
        records = _pax_records(data)
        # `git archive` writes a global comment; a global path or size would apply to every member that follows.
        if kind == b"g" and not records.keys() <= {b"comment"}:
            raise BadArchive("a global pax header has more than a comment")
        if kind == b"x":
            extended.update(records)


def _pax_records(data: bytes) -> dict[bytes, bytes]:
    records = {}
    at = 0
    while at < len(data):
        blank = data.find(b" ", at)
        length = _decimal(data[at:blank]) if blank > 0 else -1
        if not 0 <= length <= len(data) - at:
            raise BadArchive("a pax header is damaged")
        end = at + length
        key, equals, value = data[blank + 1 : end - 1].partition(b"=")
        if end <= blank + 1 or data[end - 1 : end] != b"\n" or not equals or b"\0" in value:
            raise BadArchive("a pax header is damaged")
        records[key] = value
        at = end
    return records
