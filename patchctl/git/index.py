"""Reads and changes git's index as bytes, without a git process (git's Documentation/gitformat-index).

Changes only plain indexes: version 2 or 3, no flags, no conflicts, not split, not sparse, and with a complete cache
tree that names the tree it was made from. Every other index, and every damaged one, is left to git (NotPlain).
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from patchctl.git.objects import EXECUTABLE, GITLINK, REGULAR, SYMLINK, Files, TreeEntry

_HEAD, _FIXED, _DIGEST = 12, 62, 20
_LONGEST_NAME = 0xFFF
_EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
_LARGEST = 256 << 20
# A file written this recently may be written again within the same clock tick.
_TICK_NS = 50_000_000


class NotPlain(Exception):
    """This index has to be changed by git."""


@dataclass(frozen=True)
class IndexChange:
    """A change from one tree to another: differing entries, and the new trees of differing folders (None if removed).

    `source` is the old tree's id, b"" in `folders` the top. `read` returns the entry of the file on disk. `written`
    has device, inode, size and mtime of files as they were written; those need not be read again.
    """

    source: str
    before: Files
    after: Files
    folders: Mapping[bytes, str | None]
    read: Callable[[bytes], TreeEntry | None]
    written: Mapping[bytes, tuple[int, int, int, int]]


def summary(file: Path) -> tuple[bool, str | None]:
    """Whether an entry is in conflict or has a flag that hides its file from git; and the tree that all entries make, None where
    the cache tree does not say, as after a change of any of them. Raises NotPlain, OSError."""
    data = _read(file)[0]
    marked, end = 0, _HEAD
    for at, end in _entries(data):  # noqa: B007  (where extensions begin)
        marked |= data[at + 60] & 0xF0
    top = re.match(rb"\0\d+ \d+\n(.{20})", _extension(data, end), re.DOTALL)
    return bool(marked), top[1].hex() if top else None


def changed(file: Path, folder: Path, change: IndexChange) -> tuple[bytes, list[bytes]]:
    """Return the index after `change`, and its files that differ on disk. Raises NotPlain, OSError."""
    return _changed(*_read(file), folder, change)


def made_anew(folder: Path, change: IndexChange) -> tuple[bytes, list[bytes]]:
    """Like `changed`, where no index exists yet. Raises NotPlain, OSError."""
    return _changed(_empty(), 0, folder, replace(change, source=_EMPTY_TREE))


def _empty() -> bytes:
    """Return an index without entries."""
    cache = b"\x000 0\n" + bytes.fromhex(_EMPTY_TREE)
    data = b"DIRC" + struct.pack(">II", 2, 0) + b"TREE" + struct.pack(">I", len(cache)) + cache
    return data + hashlib.sha1(data, usedforsecurity=False).digest()


def _changed(data: bytes, second: int, folder: Path, change: IndexChange) -> tuple[bytes, list[bytes]]:
    sides = (*change.before.values(), *change.after.values())
    if any(entry.mode not in (REGULAR, EXECUTABLE, SYMLINK) for entry in sides):
        raise NotPlain
    places = list(_entries(data))
    trees = _Trees(data, places[-1][1] if places else _HEAD, change)
    top = os.fsencode(folder) + b"/"
    made: dict[bytes, bytes] = {}
    differing = []
    for path, entry in sorted(change.after.items()):
        piece = _fresh(top, path, entry, change)
        if piece is None:
            differing.append(path)
            piece = _render(path, entry, None)
        made[path] = piece
    pieces, count = _merged(data, places, second, top, made, change)
    cache = trees.rendered()
    head = data[:8] + struct.pack(">I", count)
    out = b"".join([head, *pieces, b"TREE", struct.pack(">I", len(cache)), cache])
    return out + hashlib.sha1(out, usedforsecurity=False).digest(), differing


def _read(file: Path) -> tuple[bytes, int]:
    """Return the whole index and the second of its mtime."""
    with open(file, "rb", buffering=0) as source:
        status = os.fstat(source.fileno())
        if status.st_size > _LARGEST:
            raise NotPlain
        data = source.read()
    digest = hashlib.sha1(data[:-_DIGEST], usedforsecurity=False).digest()
    if len(data) < _HEAD + _DIGEST or digest != data[-_DIGEST:]:
        raise NotPlain
    return data, status.st_mtime_ns // 1_000_000_000


def _entries(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield start and end of each entry."""
    if data[:4] != b"DIRC" or int.from_bytes(data[4:8], "big") not in (2, 3):
        raise NotPlain
    at, last = _HEAD, len(data) - _DIGEST
    for _ in range(int.from_bytes(data[8:12], "big")):
        if at + _FIXED >= last:
            raise NotPlain
        flags = data[at + 60]
        length = (flags & 0x0F) << 8 | data[at + 61]
        if length == _LONGEST_NAME or flags & 0x40:  # 0x40: extended flags, left to git
            raise NotPlain
        end = at + (_FIXED + 8 + length & ~7)
        yield at, end
        at = end


def _merged(
    data: bytes,
    places: list[tuple[int, int]],
    second: int,
    top: bytes,
    made: Mapping[bytes, bytes],
    change: IndexChange,
) -> tuple[list[bytes], int]:
    """Return the entries that stay, merged with the new ones, and their count.

    If an entry's file changed in or after the second in which the index was written, its stat data may hide an edit;
    such a file is read here, as git does (Documentation/technical/racy-git.txt).
    """
    waiting = iter([*sorted(change.before.keys() | change.after.keys()), None])
    coming = next(waiting)
    racy = struct.pack(">I", max(0, min(second, 0xFFFFFFFF)))
    pieces: list[bytes] = []
    run = end = _HEAD
    count = len(places)
    for at, end in places:
        if data[at + 60] & 0xF0:
            raise NotPlain
        path = data[at + _FIXED : data.index(b"\0", at + _FIXED)]
        gone = False
        while coming is not None and path >= coming:
            pieces += [data[run:at], made.get(coming, b"")]
            gone = path == coming
            run = end if gone else at
            count += (coming in made) - gone
            coming = next(waiting)
        if not gone and data[at + 8 : at + 12] >= racy:
            entry = TreeEntry(int.from_bytes(data[at + 24 : at + 28], "big"), data[at + 40 : at + 60].hex())
            if entry.mode != GITLINK:
                pieces += [data[run:at], _fresh(top, path, entry, change) or _render(path, entry, None)]
                run = end
    pieces.append(data[run:end])
    while coming is not None:
        pieces.append(made.get(coming, b""))
        count += coming in made
        coming = next(waiting)
    return pieces, count


def _fresh(top: bytes, path: bytes, entry: TreeEntry, change: IndexChange) -> bytes | None:
    """Return a file's index entry after checking its content; None if the file differs."""
    try:
        status = os.lstat(top + path)
    except OSError:
        return None
    known = change.written.get(path)
    settled = time.time_ns() - status.st_mtime_ns > _TICK_NS
    if not (settled and known == (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)):
        found = change.read(path)
        same = found is not None and found.id == entry.id and (found.mode == SYMLINK) == (entry.mode == SYMLINK)
        if not same:
            return None
    executable = stat.S_ISREG(status.st_mode) and bool(status.st_mode & 0o100)
    if entry.mode != SYMLINK and executable != (entry.mode == EXECUTABLE):
        return None
    return _render(path, entry, status)


def _render(path: bytes, entry: TreeEntry, status: os.stat_result | None) -> bytes:
    """Render an entry. Without a status it gets zero stat data, so that every git rereads the file."""
    numbers = [0] * 6
    size = owner = group = 0
    if status is not None:
        times = (*divmod(status.st_ctime_ns, 10**9), *divmod(status.st_mtime_ns, 10**9))
        numbers = [n & 0xFFFFFFFF for n in (*times, status.st_dev, status.st_ino)]
        owner, group, size = (n & 0xFFFFFFFF for n in (status.st_uid, status.st_gid, status.st_size))
    if len(path) >= _LONGEST_NAME:
        raise NotPlain
    fixed = struct.pack(">10I20sH", *numbers, entry.mode, owner, group, size, bytes.fromhex(entry.id), len(path))
    return fixed + path + b"\0" * (8 - (_FIXED + len(path)) % 8)


def _extension(data: bytes, at: int) -> bytes:
    """Return the cache tree's bytes; extensions start `at`. Raises NotPlain for another one that is required."""
    last, found = len(data) - _DIGEST, b""
    while at < last:
        size = int.from_bytes(data[at + 4 : at + 8], "big")
        if not b"A" <= data[at : at + 1] <= b"Z" or at + 8 + size > last:
            raise NotPlain
        if data[at : at + 4] == b"TREE":
            found = data[at + 8 : at + 8 + size]
        at += 8 + size
    return found


class _Node:
    """A folder in the cache tree: the number of entries below it, its tree id, its subfolders."""

    def __init__(self, count: int, oid: str) -> None:
        self.count = count
        self.oid = oid
        self.folders: dict[bytes, _Node] = {}


class _Trees:
    """The cache tree of an index, updated for a change."""

    def __init__(self, data: bytes, at: int, change: IndexChange) -> None:
        self._data = _extension(data, at)
        self._at = 0
        name, self._top = self._node()
        if name or self._at != len(self._data) or self._top.oid != change.source:
            raise NotPlain
        for path, oid in sorted(change.folders.items()):  # parents first
            self._set(path, oid)
        for path in change.before.keys() - change.after.keys():
            self._count(path, -1)
        for path in change.after.keys() - change.before.keys():
            self._count(path, 1)

    def _node(self) -> tuple[bytes, _Node]:
        data = self._data
        nul = data.find(b"\0", self._at)
        end = data.find(b"\n", nul)
        if nul < 0 or end < 0:
            raise NotPlain
        try:
            count, folders = map(int, data[nul + 1 : end].split(b" "))
        except ValueError:
            raise NotPlain from None
        if count < 0:  # invalidated: its tree id is unknown
            raise NotPlain
        name, node = data[self._at : nul], _Node(count, data[end + 1 : end + 21].hex())
        self._at = end + 21
        for _ in range(folders):
            inner, below = self._node()
            node.folders[inner] = below
        return name, node

    def _set(self, path: bytes, oid: str | None) -> None:
        if not path:
            self._top.oid = oid or ""
            return
        *above, name = path.split(b"/")
        node: _Node | None = self._top
        for part in above:
            node = node.folders.get(part) if node else None
        if oid is None:
            if node is not None:
                node.folders.pop(name, None)
        elif node is None:
            raise NotPlain
        else:
            node.folders.setdefault(name, _Node(0, oid)).oid = oid

    def _count(self, path: bytes, step: int) -> None:
        node: _Node | None = self._top
        for part in path.split(b"/"):
            if node is None:
                return
            node.count += step
            node = node.folders.get(part)

    def rendered(self) -> bytes:
        if len(self._top.oid) != 40:
            raise NotPlain
        out: list[bytes] = []
        _render_node(b"", self._top, out)
        return b"".join(out)


def _render_node(name: bytes, node: _Node, out: list[bytes]) -> None:
    """Render in git's order, shorter names first."""
    out.append(b"%s\0%d %d\n%s" % (name, node.count, len(node.folders), bytes.fromhex(node.oid)))
    for inner in sorted(node.folders, key=lambda n: (len(n), n)):
        _render_node(inner, node.folders[inner], out)
