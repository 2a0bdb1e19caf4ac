"""Git's objects as bytes: ids, trees and commits. No process is started here.

Formats: git's Documentation/gitformat-pack and `git help hash-object`; SHA-1 repositories only, which all five upstreams are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import NamedTuple

from patchctl.values import dataclass

REGULAR = 0o100644
EXECUTABLE = 0o100755
SYMLINK = 0o120000
GITLINK = 0o160000
FOLDER = 0o040000


class Entry(NamedTuple):
    """What a path of a tree is: its mode (an octal number as git has it) and its object id (40 hexadecimal digits)."""

    mode: int
    id: str


Files = dict[bytes, Entry]
"""A whole tree, flat: path from the root, in bytes with '/', to its entry. Holds no folders."""


def object_id(kind: str, data: bytes) -> str:
    """The id that git gives to an object of `kind` (blob, tree, commit) with this content."""
    return hashlib.sha1(b"%s %d\0" % (kind.encode(), len(data)) + data, usedforsecurity=False).hexdigest()


def parse_tree(data: bytes) -> list[tuple[bytes, Entry]]:
    """The entries of a tree object, as (name, entry), in its order."""
    entries = []
    at = 0
    while at < len(data):
        space = data.index(b" ", at)
        nul = data.index(b"\0", space)
        entries.append((data[space + 1 : nul], Entry(int(data[at:space], 8), data[nul + 1 : nul + 21].hex())))
        at = nul + 21
    return entries


def render_tree(entries: Iterable[tuple[bytes, Entry]]) -> bytes:
    """A tree object of these (name, entry) pairs, in git's order: a folder sorts as if its name ended with '/'."""
    ordered = sorted(entries, key=lambda e: e[0] + b"/" if e[1].mode == FOLDER else e[0])
    return b"".join(b"%o %s\0%s" % (e.mode, name, bytes.fromhex(e.id)) for name, e in ordered)


@dataclass(frozen=True)
class Person:
    """A name and an address as a commit holds them, and git's date: seconds since 1970 and a zone such as +0000."""

    name: str
    email: str
    date: str

    def __str__(self) -> str:
        return f"{self.name} <{self.email}> {self.date}"


def render_commit(tree: str, parents: Iterable[str], author: Person, committer: Person, message: str) -> bytes:
    """A commit object. `message` is written as it is and must end with a newline."""
    lines = [
        f"tree {tree}",
        *(f"parent {p}" for p in parents),
        f"author {author}",
        f"committer {committer}",
        "",
        message,
    ]
    return "\n".join(lines).encode("utf-8")


PutTree = Callable[[str, bytes, "tuple[str, bytes] | None"], object]


class TreeBuilder:
    """A tree that changes file by file and tells its id after any change, hashing only the folders that changed."""

    def __init__(self, files: Files) -> None:
        self._root = _Folder()
        for path, entry in files.items():
            self._root.put(path.split(b"/"), entry)

    def put(self, path: bytes, entry: Entry) -> None:
        """Add a file or replace it."""
        self._root.put(path.split(b"/"), entry)

    def remove(self, path: bytes) -> None:
        """Take a file out, and every folder that becomes empty, as git does. KeyError when it is not there."""
        self._root.remove(path.split(b"/"))

    def is_folder(self, path: bytes) -> bool:
        """Whether the tree has a folder of this name."""
        folder: _Folder | None = self._root
        for part in path.split(b"/"):
            folder = folder.folders.get(part) if folder else None
        return folder is not None

    def write(self, store: dict[str, bytes] | None = None) -> str:
        """The id of the tree as it stands; the content of every folder that changed since the last call goes into `store`."""
        return self.write_to(None if store is None else lambda oid, data, _: store.setdefault(oid, data))

    def write_to(self, put: PutTree | None) -> str:
        """`write` that gives each changed folder to `put`: its id, its content, and id and content of the last call."""
        return self._root.write(put)[0]


class _Folder:
    __slots__ = ("changed", "files", "folders", "written")

    def __init__(self) -> None:
        self.files: dict[bytes, Entry] = {}
        self.folders: dict[bytes, _Folder] = {}
        self.written: tuple[str, bytes] | None = None
        self.changed = True

    def put(self, parts: list[bytes], entry: Entry) -> None:
        folder = self
        folder.changed = True
        for part in parts[:-1]:
            folder = folder.folders.setdefault(part, _Folder())
            folder.changed = True
        folder.files[parts[-1]] = entry

    def remove(self, parts: list[bytes]) -> None:
        self.changed = True
        if len(parts) == 1:
            del self.files[parts[0]]
            return
        child = self.folders[parts[0]]
        child.remove(parts[1:])
        if not child.files and not child.folders:
            del self.folders[parts[0]]

    def write(self, put: PutTree | None) -> tuple[str, bytes]:
        if self.changed or self.written is None:
            entries = list(self.files.items())
            entries += [(name, Entry(FOLDER, folder.write(put)[0])) for name, folder in self.folders.items()]
            data = render_tree(entries)
            before, self.written = self.written, (object_id("tree", data), data)
            self.changed = False
            if put is not None:
                put(*self.written, before)
        return self.written
