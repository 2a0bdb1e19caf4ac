"""git's deltas, in packs and binary patches (git's Documentation/gitformat-pack.txt, "Deltified representation").

Copies from a base object, and new bytes. Creating one needs no search over the whole base as in git: the caller knows
the object it was made from, so a common start and end, and a few anchors between, find most copies. For objects
related by hunks nothing is searched: the regions between hunks are copied.
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
    """`size` bytes at `base` in the base that equal those at `target` in the target."""

    base: int
    target: int
    size: int


def make(base: bytes, target: bytes, limit: int) -> bytes | None:
    """Return the delta from `base` to `target`, or None if it would have more than `limit` new bytes."""
    copies: list[Copy] = []
    _find_copies(base, target, (0, len(base), 0, len(target)), copies, _DEEPEST)
    return render(len(base), target, copies, limit)


def render(base_size: int, target: bytes, copies: Iterable[Copy], limit: int) -> bytes | None:
    """Like `make`, for a caller that knows the common regions: `copies` in target order, not overlapping."""
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
        for at in range(0, size, _LONGEST_COPY):  # always with all seven bytes: finding zeros to omit costs more
            out += b"\xff" + (base + at).to_bytes(4, "little") + min(size - at, _LONGEST_COPY).to_bytes(3, "little")
        done = start + size
    return bytes(out)


def _find_copies(base: bytes, target: bytes, part: tuple[int, int, int, int], out: list[Copy], depth: int) -> None:
    """Find copies for target[t:t_end] in base[b:b_end], in order: common start, anchored middle, common end."""
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
    """Return how many bytes a[i:] and b[j:] share at the start, up to `limit`: by blocks, then by first bit."""
    at = 0
    while at + _STEP <= limit and a[i + at : i + at + _STEP] == b[j + at : j + at + _STEP]:
        at += _STEP
    size = min(_STEP, limit - at)
    ours, theirs = (int.from_bytes(side[k + at : k + at + size], "big") for side, k in ((a, i), (b, j)))
    return at + size - ((ours ^ theirs).bit_length() + 7) // 8


def _common_end(a: bytes, b: bytes, i: int, j: int, limit: int) -> int:
    """Return how many bytes a[:i] and b[:j] share at the end, at most `limit`."""
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
    """Apply a delta to `base`, using no more memory than the announced size, at most `most` bytes.

    Raises ValueError or IndexError for a delta that does not fit.
    """
    source, at = _number(delta, 0)
    target, at = _number(delta, at)
    if source != len(base) or target > most:
        raise ValueError("the delta is for another base")
    out: list[bytes] = []
    made, end = 0, len(delta)
    while at < end:
        code = delta[at]
        at += 1
        if code & 0x80:
            start = size = 0
            # No loop over the bits: a tree takes a hundred thousand of these, and a loop twice the time.
            if code & 0x01:
                start = delta[at]
                at += 1
            if code & 0x02:
                start |= delta[at] << 8
                at += 1
            if code & 0x04:
                start |= delta[at] << 16
                at += 1
            if code & 0x08:
                start |= delta[at] << 24
                at += 1
            if code & 0x10:
                size = delta[at]
                at += 1
            if code & 0x20:
                size |= delta[at] << 8
                at += 1
            if code & 0x40:
                size |= delta[at] << 16
                at += 1
            size = size or 0x10000
            if start + size > source:
                raise ValueError("the delta copies from beyond the base")
            piece = base[start : start + size]
        elif code:
            piece = delta[at : at + code]
            at += code
        else:
            raise ValueError("the delta has a reserved opcode")
        made += len(piece)
        if made > target:
            raise ValueError("the delta exceeds its announced size")
        out.append(piece)
    if made != target:
        raise ValueError("the delta does not give its announced size")
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
