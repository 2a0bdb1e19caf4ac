"""Git's pack deltas: copies from a base object and new bytes (git's Documentation/gitformat-pack.txt, "Deltified representation").

They stand in packs and in binary patches. Making one is not a search over all of the base, as git's own is: the caller knows
which object the new one came from, so that a common start, a common end, and a few anchors between them find most of what
there is to copy. Where hunks made one of the other there is nothing to find: what lies between them is copied.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

_STEP = 4096
_ANCHOR = 32
_DEEPEST = 6
_LONGEST_COPY = 0xFFFFFF
_LONGEST_INSERT = 127


class Copy(NamedTuple):
    """`size` bytes that stand at `base` in the base and at `target` in the target."""

    base: int
    target: int
    size: int


def make(base: bytes, target: bytes, limit: int) -> bytes | None:
    """The delta that turns `base` into `target`, or None when it would hold more than `limit` new bytes."""
    copies: list[Copy] = []
    _find_copies(base, target, (0, len(base), 0, len(target)), copies, _DEEPEST)
    return render(len(base), target, copies, limit)


def render(base_size: int, target: bytes, copies: Iterable[Copy], limit: int) -> bytes | None:
    """`make` for a caller that knows what stands in both: `copies` in the order of `target`, none over another."""
    out = bytearray(_size(base_size) + _size(len(target)))
    done = inserted = 0
    for base, start, size in (*copies, Copy(base_size, len(target), 0)):
        inserted += start - done
        if inserted > limit:
            return None
        for at in range(done, start, _LONGEST_INSERT):
            piece = target[at : min(at + _LONGEST_INSERT, start)]
            out.append(len(piece))
            out += piece
        for at in range(0, size, _LONGEST_COPY):  # with all of its seven bytes, zeros too: no search for those
            out += b"\xff" + (base + at).to_bytes(4, "little") + min(size - at, _LONGEST_COPY).to_bytes(3, "little")
        done = start + size
    return bytes(out)


def _find_copies(base: bytes, target: bytes, part: tuple[int, int, int, int], out: list[Copy], depth: int) -> None:
    """Copies for target[t:t_end] from base[b:b_end], in order: what both begin with, what lies between, what both end with."""
    b, b_end, t, t_end = part
    start = _common_start(base, target, b, t, min(b_end - b, t_end - t))
    if start:
        out.append(Copy(b, t, start))
    b, t = b + start, t + start
    end = _common_end(base, target, b_end, t_end, min(b_end - b, t_end - t))
    b_end, t_end = b_end - end, t_end - end
    if depth and b_end - b > _ANCHOR and t_end - t > _ANCHOR:
        for quarter in (2, 1, 3):
            anchor = b + (b_end - b - _ANCHOR) * quarter // 4
            found = target.find(base[anchor : anchor + _ANCHOR], t, t_end)
            if found >= 0:
                _find_copies(base, target, (b, anchor, t, found), out, depth - 1)
                _find_copies(base, target, (anchor, b_end, found, t_end), out, depth - 1)
                break
    if end:
        out.append(Copy(b_end, t_end, end))


def _common_start(a: bytes, b: bytes, i: int, j: int, limit: int) -> int:
    """How many bytes a[i:] and b[j:] share at their beginning, up to `limit`: by blocks, then by the first bit that differs."""
    at = 0
    while at + _STEP <= limit and a[i + at : i + at + _STEP] == b[j + at : j + at + _STEP]:
        at += _STEP
    size = min(_STEP, limit - at)
    ours, theirs = (int.from_bytes(side[k + at : k + at + size], "big") for side, k in ((a, i), (b, j)))
    return at + size - ((ours ^ theirs).bit_length() + 7) // 8


def _common_end(a: bytes, b: bytes, i: int, j: int, limit: int) -> int:
    """How many bytes a[:i] and b[:j] share at their end, up to `limit`."""
    at = 0
    while at + _STEP <= limit and a[i - at - _STEP : i - at] == b[j - at - _STEP : j - at]:
        at += _STEP
    size = min(_STEP, limit - at)
    ours, theirs = (int.from_bytes(side[k - at - size : k - at], "little") for side, k in ((a, i), (b, j)))
    return at + size - ((ours ^ theirs).bit_length() + 7) // 8


def _size(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def apply_delta(base: bytes, delta: bytes, most: int) -> bytes:
    """What a delta makes of `base`. Never holds more than it says that it makes, nor than `most` bytes.

    Raises ValueError or IndexError for one that does not fit.
    """
    source, at = _number(delta, 0)
    target, at = _number(delta, at)
    if source != len(base) or target > most:
        raise ValueError("the delta was made for another file")
    out: list[bytes] = []
    made, end = 0, len(delta)
    while at < end:
        code = delta[at]
        at += 1
        if code & 0x80:
            start = size = 0
            for bit in range(4):
                if code & 1 << bit:
                    start |= delta[at] << 8 * bit
                    at += 1
            for bit in range(3):
                if code & 0x10 << bit:
                    size |= delta[at] << 8 * bit
                    at += 1
            size = size or 0x10000
            if start + size > source:
                raise ValueError("the delta copies from beyond the file")
            piece = base[start : start + size]
        elif code:
            piece = delta[at : at + code]
            at += code
        else:
            raise ValueError("the delta holds a reserved code")
        made += len(piece)
        if made > target:
            raise ValueError("the delta gives more than it says")
        out.append(piece)
    if made != target:
        raise ValueError("the delta gives another size than it says")
    return b"".join(out)


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if not byte & 0x80:
            return value, at
