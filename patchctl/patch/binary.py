"""Binary patches of git: `literal` and `delta` blocks in base 85, deflated (git's Documentation/diff-generate-patch.txt)."""

from __future__ import annotations

import base64
import binascii
import zlib
from dataclasses import dataclass

from patchctl.errors import BadPatch, Where

MAX_INFLATED = 512 * 1024 * 1024


@dataclass(slots=True)
class BinaryChange:
    """The forward half of a binary patch. `delta` says whether `data` is git's delta against the preimage or the whole file."""

    delta: bool
    data: bytes
    line: int


def parse_binary(lines: list[bytes], at: int, name: str) -> tuple[BinaryChange, int]:
    """Read from the line `GIT binary patch` on; returns the change and the first line after it. Raises BadPatch."""
    forward, after = _block(lines, at + 1, name)
    if after < len(lines) and lines[after].startswith((b"literal ", b"delta ")):
        _, after = _block(lines, after, name)  # the reverse half, which nothing here needs
    return forward, after


def _block(lines: list[bytes], at: int, name: str) -> tuple[BinaryChange, int]:
    start = at
    words = lines[at].split() if at < len(lines) else []
    if len(words) != 2 or words[0] not in (b"literal", b"delta") or not words[1].isdigit() or len(words[1]) > 12:
        raise BadPatch("`literal SIZE` or `delta SIZE` was expected", where=Where(name, at + 1))
    size = int(words[1])
    if size > MAX_INFLATED:
        raise BadPatch(f"the binary patch inflates to more than {MAX_INFLATED // 2**20} MiB", where=Where(name, at + 1))
    at += 1
    packed = bytearray()
    while at < len(lines) and lines[at]:
        packed += _decode(lines[at], name, at)
        at += 1
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(bytes(packed), size + 1)
    except zlib.error as error:
        raise BadPatch(f"the binary patch cannot be inflated: {error}", where=Where(name, start + 1)) from error
    if len(data) != size or inflater.unconsumed_tail or not (inflater.eof or size == len(data)):
        raise BadPatch(f"the binary patch announces {size} bytes and holds {len(data)} or more", where=Where(name, start + 1))
    return BinaryChange(words[0] == b"delta", data, start + 1), at + 1


def _decode(line: bytes, name: str, at: int) -> bytes:
    """One line: a letter for the number of bytes (A-Z 1 to 26, a-z 27 to 52), then base 85 in groups of five."""
    first = line[0]
    length = first - 64 if 65 <= first <= 90 else first - 70 if 97 <= first <= 122 else 0
    try:
        data = base64.b85decode(line[1:])
    except (ValueError, binascii.Error) as error:
        raise BadPatch(f"broken base 85: {error}", where=Where(name, at + 1)) from error
    if length == 0 or len(data) < length or len(data) - length > 3:
        raise BadPatch("a line of the binary patch has another length than it says", where=Where(name, at + 1))
    return data[:length]


def apply_delta(base: bytes, delta: bytes) -> bytes:
    """Git's pack delta on `base`. Raises ValueError when it does not fit."""
    source_size, at = _varint(delta, 0)
    target_size, at = _varint(delta, at)
    if source_size != len(base) or target_size > MAX_INFLATED:
        raise ValueError("the delta was made for another file")
    out = bytearray()
    while at < len(delta):
        code = delta[at]
        at += 1
        if code & 0x80:
            values = [0, 0]
            for which, bits in ((0, (1, 2, 4, 8)), (1, (0x10, 0x20, 0x40))):
                for shift, bit in enumerate(bits):
                    if code & bit:
                        values[which] |= delta[at] << (8 * shift)
                        at += 1
            offset, size = values[0], values[1] or 0x10000
            if offset + size > len(base):
                raise ValueError("the delta copies from beyond the file")
            out += base[offset : offset + size]
        elif code:
            out += delta[at : at + code]
            at += code
        else:
            raise ValueError("the delta holds a reserved code")
    if len(out) != target_size:
        raise ValueError("the delta gives another size than it says")
    return bytes(out)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return value, at
