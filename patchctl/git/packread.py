"""Reads objects from a repository's packs and loose files without a process. The caller verifies each id.

Formats: git's Documentation/gitformat-pack (pack and index version 2). Returns None for anything not understood, too
large or missing; the caller then asks `git cat-file`, which knows more (alternates, other versions) and names the
fault.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path

from patchctl.delta import apply_delta

_KINDS = {1: "commit", 2: "tree", 3: "blob", 4: "tag"}
_OFFSET_DELTA, _ID_DELTA = 6, 7
_LARGEST = 64 << 20
_LARGEST_INDEX = 64 << 20
# Cache of delta bases; git's own limit (core.deltaBaseCacheLimit) is three times as large.
_KEPT_BYTES = 16 << 20
_LONGEST_CHAIN = 5000
_FIRST_READ = 8192
_HEADER = 64
_ENTRIES = 8 + 256 * 4


class _Odd(Exception):
    """Something left to git."""


# What parsing bytes that are not a pack, or are damaged, can raise.
_FAULTS = (_Odd, OSError, ValueError, IndexError, KeyError, zlib.error, OverflowError)


class PackReader:
    """The objects of a git directory, by id."""

    def __init__(self, git_dir: Path) -> None:
        self._objects = os.fsencode(git_dir) + b"/objects"
        self._packs: list[_Pack] | None = None

    def close(self) -> None:
        for pack in self._packs or ():
            pack.close()
        self._packs = None

    def read(self, oid: str) -> tuple[str, bytes] | None:
        """Return type and content of an object, unverified, or None."""
        try:
            name = bytes.fromhex(oid)
            for pack in self._all():
                offset = pack.find(name)
                if offset is not None:
                    return pack.object_at(offset)
            return _loose(self._objects, oid)
        except _FAULTS:
            return None

    def holds(self, oid: str) -> bool:
        """Whether an object exists, by its id. False does not mean that git would not find it."""
        try:
            name = bytes.fromhex(oid)
            if any(pack.find(name) is not None for pack in self._all()):
                return True
            return os.path.isfile(_place(self._objects, oid))
        except _FAULTS:
            return False

    def _all(self) -> list[_Pack]:
        if self._packs is None:
            folder = self._objects + b"/pack"
            try:
                names = sorted(name for name in os.listdir(folder) if name.endswith(b".idx"))
            except FileNotFoundError:
                names = []
            found = []
            for name in names:
                try:
                    found.append(_Pack(folder + b"/" + name[:-4]))
                except _FAULTS:
                    continue
            self._packs = found
        return self._packs


def holds(git_dir: Path, oid: str) -> bool:
    """Whether a git directory has an object, by its id. False does not mean that git would not find it."""
    reader = PackReader(git_dir)
    try:
        return reader.holds(oid)
    finally:
        reader.close()


class _Pack:
    """One pack and its index. Files are read, not mapped: a mapped file that is truncated would kill us (SIGBUS)."""

    def __init__(self, stem: bytes) -> None:
        self._stem = stem
        self._handle: int | None = None
        self._kept: dict[int, tuple[int, bytes]] = {}
        self._kept_bytes = 0
        if os.stat(stem + b".idx").st_size > _LARGEST_INDEX:
            raise _Odd
        with open(stem + b".idx", "rb", buffering=0) as source:
            self._index = index = source.read()
        if index[:8] != b"\xfftOc\0\0\0\x02":
            raise _Odd
        self._count = int.from_bytes(index[_ENTRIES - 4 : _ENTRIES], "big")
        if len(index) < _ENTRIES + self._count * 28 + 40:
            raise _Odd

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def find(self, name: bytes) -> int | None:
        index, first = self._index, name[0]
        low = int.from_bytes(index[4 + first * 4 : 8 + first * 4], "big") if first else 0
        high = int.from_bytes(index[8 + first * 4 : 12 + first * 4], "big")
        end = _ENTRIES + high * 20
        place = index.find(name, _ENTRIES + low * 20, end)
        while place >= 0 and (place - _ENTRIES) % 20:  # the end of one id and the start of the next
            place = index.find(name, place + 1, end)
        if place < 0:
            return None
        at = (place - _ENTRIES) // 20
        place = _ENTRIES + self._count * 24 + at * 4
        offset = int.from_bytes(index[place : place + 4], "big")
        if offset & 0x80000000:
            place = _ENTRIES + self._count * 28 + (offset & 0x7FFFFFFF) * 8
            offset = int.from_bytes(index[place : place + 8], "big")
        return offset

    def object_at(self, offset: int) -> tuple[str, bytes]:
        """Return the object at `offset`, resolving its delta chain."""
        deltas: list[tuple[int, bytes]] = []
        while (known := self._kept.get(offset)) is None:
            kind, base, data = self._entry(offset)
            if base is None:
                if deltas:  # what no delta asked for is not asked for again
                    self._keep(offset, kind, data)
                known = kind, data
                break
            deltas.append((offset, data))
            if len(deltas) > _LONGEST_CHAIN:
                raise _Odd
            offset = base
        kind, content = known
        for place, delta in reversed(deltas):
            content = apply_delta(content, delta, _LARGEST)
            self._keep(place, kind, content)
        return _KINDS[kind], content

    def _keep(self, offset: int, kind: int, data: bytes) -> None:
        if self._kept_bytes + len(data) > _KEPT_BYTES:
            self._kept.clear()
            self._kept_bytes = 0
        self._kept[offset] = kind, data
        self._kept_bytes += len(data)

    def _entry(self, offset: int) -> tuple[int, int | None, bytes]:
        """Return what is stored at `offset`: type, offset of the delta base (None if whole), data."""
        if self._handle is None:
            self._handle = os.open(self._stem + b".pack", os.O_RDONLY | os.O_CLOEXEC)
        data = os.pread(self._handle, _FIRST_READ, offset)
        byte = data[0]
        kind, size, shift, at = byte >> 4 & 7, byte & 15, 4, 1
        while byte & 0x80:
            byte = data[at]
            size |= (byte & 0x7F) << shift
            shift += 7
            at += 1
        if size > _LARGEST or at > _HEADER:
            raise _Odd
        base: int | None = None
        if kind == _OFFSET_DELTA:
            byte = data[at]
            back = byte & 0x7F
            at += 1
            while byte & 0x80:
                byte = data[at]
                back = (back + 1) << 7 | byte & 0x7F
                at += 1
            base = offset - back
            if back <= 0 or base < 12:
                raise _Odd
        elif kind == _ID_DELTA:
            base = self.find(data[at : at + 20])
            at += 20
            if base is None:
                raise _Odd
        return kind, base, self._inflated(data[at:], offset + len(data), size)

    def _inflated(self, data: bytes, follows: int, size: int) -> bytes:
        assert self._handle is not None
        stream = zlib.decompressobj()
        out = stream.decompress(data, size + 1)
        while len(out) < size or not stream.eof:
            if not stream.unconsumed_tail:
                data = os.pread(self._handle, max(_FIRST_READ, min(size, 1 << 20)), follows)
                if not data:
                    raise _Odd
                follows += len(data)
            else:
                data = stream.unconsumed_tail
            piece = stream.decompress(data, size - len(out) + 1)
            out += piece
            if len(out) > size:
                raise _Odd
        if len(out) != size:
            raise _Odd
        return out


def _place(objects: bytes, oid: str) -> bytes:
    return objects + f"/{oid[:2]}/{oid[2:]}".encode()


def _loose(objects: bytes, oid: str) -> tuple[str, bytes] | None:
    try:
        with open(_place(objects, oid), "rb") as source:
            stored = source.read(_LARGEST)
    except FileNotFoundError:
        return None
    data = zlib.decompressobj().decompress(stored, _LARGEST)
    head, _, content = data.partition(b"\0")
    kind, size = head.decode("ascii").split(" ")
    return (kind, content) if int(size) == len(content) and kind in _KINDS.values() else None
