"""git's objects as bytes: ids, trees and commits. Starts no process.

Formats: git's Documentation/gitformat-pack and `git help hash-object`. SHA-1 repositories only, which all five
upstreams are.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

REGULAR = 0o100644
EXECUTABLE = 0o100755
SYMLINK = 0o120000
GITLINK = 0o160000
FOLDER = 0o040000


class TreeEntry(NamedTuple):
    """A tree entry: git's mode as a number, and the object id as 40 hexadecimal digits."""

    mode: int
    id: str


Files = dict[bytes, TreeEntry]
"""A flattened tree: path from the root, as bytes with '/', to its entry. Has no folders."""


_ENTRY = re.compile(rb"(([0-7]+) ([^\0]*)\0(.{20}))", re.DOTALL)


def object_id(kind: str, data: bytes) -> str:
    """Return the id that git gives to an object of type `kind` (blob, tree, commit) with this content."""
    digest = hashlib.sha1(b"%s %d\0" % (kind.encode(), len(data)), usedforsecurity=False)
    digest.update(data)
    return digest.hexdigest()


def split_tree(data: bytes) -> list[tuple[bytes, bytes, bytes, bytes]]:
    """Split a tree object into its entries, each whole and as (mode, name, id). Raises ValueError."""
    entries: list[tuple[bytes, bytes, bytes, bytes]] = _ENTRY.findall(data)
    if sum([len(entry[0]) for entry in entries]) != len(data):
        raise ValueError("not a tree object")
    return entries


def parse_tree(data: bytes) -> list[tuple[bytes, TreeEntry]]:
    """Return the (name, entry) pairs of a tree object, in its order."""
    return [(name, TreeEntry(int(mode, 8), oid.hex())) for _, mode, name, oid in split_tree(data)]


@dataclass(frozen=True)
class Person:
    """Name, address and git's raw date (seconds since the epoch and a zone such as +0000) as in a commit."""

    name: str
    email: str
    date: str

    def __str__(self) -> str:
        return f"{self.name} <{self.email}> {self.date}"


# Who commits what patchctl makes.
COMMITTER = ("patchctl", "patchctl@localhost")


def render_commit(tree: str, parents: Iterable[str], author: Person, committer: Person, message: str) -> bytes:
    """Return a commit object. `message` is written verbatim and must end with a newline."""
    lines = [
        f"tree {tree}",
        *(f"parent {p}" for p in parents),
        f"author {author}",
        f"committer {committer}",
        "",
        message,
    ]
    return "\n".join(lines).encode("utf-8")


PutTree = Callable[[str, bytes, "str | None"], object]
ReadTree = Callable[[str], bytes]


class TreeBuilder:
    """A mutable tree whose id can be taken after any change, rehashing only the folders that changed.

    Starts from `files`, or from the tree `base`, whose objects `read` returns by id. Only the folders on the way to
    what is looked up or changed are read.
    """

    def __init__(self, files: Files | None = None, *, base: str | None = None, read: ReadTree | None = None) -> None:
        self._root = _Folder(base, read)
        for path, entry in (files or {}).items():
            self.put(path, entry)

    def get(self, path: bytes) -> TreeEntry | None:
        """Return the file at `path`, or None."""
        above, _, name = path.rpartition(b"/")
        folder = self._root.down(above)
        entry = folder.entries.get(name) if folder else None
        return None if entry is None else TreeEntry(int(entry[: entry.index(b" ")], 8), entry[-20:].hex())

    def put(self, path: bytes, entry: TreeEntry) -> None:
        """Add or replace a file."""
        self._root.put(path.split(b"/"), entry)

    def remove(self, path: bytes) -> None:
        """Remove a file and every folder left empty, as git does. Raises KeyError if it does not exist."""
        self._root.remove(path.split(b"/"))

    def is_folder(self, path: bytes) -> bool:
        """Whether the tree has this folder."""
        above, _, name = path.rpartition(b"/")
        folder = self._root.down(above)
        return folder is not None and folder.has(name)

    def names(self, path: bytes) -> set[bytes]:
        """Return the names of the files and folders in a folder; b"" is the top."""
        folder = self._root.down(path)
        return {name.removesuffix(b"/") for name in folder.entries} | folder.inner.keys() if folder else set()

    def write(self, store: dict[str, bytes] | None = None) -> str:
        """Return the tree's id. Every folder changed since the last call is added to `store`, by its id."""
        return self.write_to(None if store is None else lambda oid, data, _: store.setdefault(oid, data))

    def write_to(self, put: PutTree | None) -> str:
        """Like `write`, but call `put` with each changed folder's id, content and id at the last call."""
        return self._root.write(put)


class _Folder:
    """A folder: raw tree entries by git's sort key (a folder's ends with '/'), and the loaded subfolders in `inner`.

    A new subfolder appears in `entries` with the next `write`.
    """

    __slots__ = ("_read", "changed", "entries", "inner", "written")

    def __init__(self, oid: str | None = None, read: ReadTree | None = None) -> None:
        self._read = read
        self.entries: dict[bytes, bytes] = {}
        self.inner: dict[bytes, _Folder] = {}
        self.written = oid
        self.changed = oid is None
        if oid is not None and read is not None:
            for entry, mode, name, _ in split_tree(read(oid)):
                # Old tools zero-padded modes; git writes such an entry without the zero.
                self.entries[name + b"/" if int(mode, 8) == FOLDER else name] = entry.lstrip(b"0")

    def has(self, name: bytes) -> bool:
        return name in self.inner or name + b"/" in self.entries

    def folder(self, name: bytes) -> _Folder | None:
        if name not in self.inner and name + b"/" in self.entries:
            self.inner[name] = _Folder(self.entries[name + b"/"][-20:].hex(), self._read)
        return self.inner.get(name)

    def down(self, path: bytes) -> _Folder | None:
        folder: _Folder | None = self
        for part in path.split(b"/") if path else ():
            folder = folder.folder(part) if folder else None
        return folder

    def put(self, parts: list[bytes], entry: TreeEntry) -> None:
        folder = self
        folder.changed = True
        for part in parts[:-1]:
            folder = folder.folder(part) or folder.inner.setdefault(part, _Folder())
            folder.changed = True
        folder.entries[parts[-1]] = b"%o %s\0%s" % (entry.mode, parts[-1], bytes.fromhex(entry.id))

    def remove(self, parts: list[bytes]) -> None:
        self.changed = True
        if len(parts) == 1:
            del self.entries[parts[0]]
            return
        child = self.folder(parts[0])
        if child is None:
            raise KeyError(parts[0])
        child.remove(parts[1:])
        if not child.entries and not child.inner:
            del self.inner[parts[0]]
            self.entries.pop(parts[0] + b"/", None)

    def write(self, put: PutTree | None) -> str:
        if self.changed or self.written is None:
            for name, folder in self.inner.items():
                if folder.changed:
                    self.entries[name + b"/"] = b"%o %s\0%s" % (FOLDER, name, bytes.fromhex(folder.write(put)))
            data = b"".join([self.entries[name] for name in sorted(self.entries)])
            before, self.written = self.written, object_id("tree", data)
            self.changed = False
            if put is not None:
                put(self.written, data, before)
        return self.written
