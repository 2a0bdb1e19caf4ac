"""Reads the files of a source distribution, checked member by member. Unpacks nothing to disk."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import zlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from patchctl.errors import SourceMismatch
from patchctl.git.objects import EXECUTABLE, REGULAR, TreeBuilder, TreeEntry, object_id
from patchctl.language import message
from patchctl.patch.names import collision_key, why_refused
from patchctl.source.cache import REFRESH
from patchctl.source.tarball import BadArchive, TarMember, members
from patchctl.source.types import ArchiveLimits
from patchctl.terminal.text import visible_line

NAME_LIMIT = 1024
# The ratio limit starts here: a small archive of small files compresses better than a large one.
UNPACKED_FREE = 64 << 20
_PINNED = "the pinned archive is not one that patchctl accepts: check the pin in the stack's manifest"
# Patches may not touch these, but a source distribution has upstream's own.
_GIT_OWN = (b".gitattributes", b".gitmodules")
_PIECE = 1 << 16
_CHUNK = 1 << 20
_MIB = 1 << 20
_CENTRAL = b"PK\x01\x02"
_CENTRAL_END = b"PK\x05\x06"
_CENTRAL_END_SIZE = 22
# setuptools appends this when it builds an sdist (setuptools/command/egg_info.py, save_version_info).
SETUPTOOLS_SETUP_CFG = b"[egg_info]\ntag_build = \ntag_date = 0\n\n"


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
            hint=_raised("packed_mib"),
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
            f"{named}{fault.reason}", where=str(archive), hint=_raised(fault.limit) if fault.limit else _PINNED
        ) from fault


def _raised(limit: str) -> str:
    return message(
        "if the archive is fine, raise the limit: `archives: {{{limit}: N}}` in the user configuration (docs/hostile-input.md)",
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
        reason = why_refused(b"/".join(p for p in parts if p not in _GIT_OWN) or parts[0])
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
