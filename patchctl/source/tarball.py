"""Reads a tar stream strictly: only what source distributions contain.

Python's tarfile ends silently at a header it does not understand, loops on negative sizes (CVE-2025-8194), and its
extraction filters were bypassed more than once (CVE-2025-4138, -4330, -4435, -4517). Here a member is a regular file
or a folder, every header must be complete with a correct checksum, and nothing is written to disk.

Formats: POSIX.1-2001 pax and ustar, and GNU long names (`info tar`, "Basic Tar Format").
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

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
