"""Reading and replacing the files of a tree, one by one, never through a link.

A file is replaced by renaming a new one over it: a hard link into a package manager's cache keeps its content (uv#15700),
and a reader of the file sees the old or the new one. A folder on the way that is a symbolic link is refused, since
writing through it would leave the tree.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from patchctl.errors import LocalEdits
from patchctl.git.objects import EXECUTABLE, GITLINK, REGULAR, SYMLINK, TreeEntry, object_id
from patchctl.language import message

_BEFORE_NS = 2_000_000_000
_TEMPORARY = ".patchctl-new-"


class TreeFiles:
    """The files below one folder, addressed by their path in the tree (bytes, '/')."""

    def __init__(self, folder: Path) -> None:
        self.folder = os.fsencode(folder)
        self._real: set[bytes] = set()
        self._owners: dict[bytes, tuple[int, int]] = {}
        self.written: dict[bytes, tuple[int, int, int, int]] = {}
        self._umask = os.umask(0)
        os.umask(self._umask)

    def entry(self, path: bytes) -> TreeEntry | None:
        """What is there, hashed: None for nothing, GITLINK for a folder, a mode of 0 for a device, a socket, ..."""
        status = self._status(path)
        if status is None:
            return None
        full = self._full(path)
        if stat.S_ISREG(status.st_mode):
            mode = EXECUTABLE if status.st_mode & 0o100 else REGULAR
            return TreeEntry(mode, object_id("blob", _content(full, status.st_size)))
        if stat.S_ISLNK(status.st_mode):
            return TreeEntry(SYMLINK, object_id("blob", os.readlink(full)))
        if stat.S_ISDIR(status.st_mode):
            return TreeEntry(GITLINK, "")
        return TreeEntry(0, "")

    def digest(self, path: bytes) -> str | None:
        """The sha256 of a regular file; None for nothing, and the empty string, which no file has, for all else."""
        status = self._status(path)
        if status is None:
            return None
        if not stat.S_ISREG(status.st_mode):
            return ""
        with open(self._full(path), "rb") as source:
            return hashlib.sha256(source.read()).hexdigest()

    def not_folders(self, path: bytes) -> Iterator[bytes]:
        """The first of the folders above `path` that is a file or a link in truth, if one is."""
        for parent in self._parents(path):
            try:
                if not stat.S_ISDIR(os.lstat(self._full(parent)).st_mode):
                    yield parent
                    return
            except (FileNotFoundError, NotADirectoryError):
                return

    def below(self, path: bytes) -> Iterator[bytes]:
        """Every file in a folder of the tree, links not followed, but for what a killed run was writing."""
        for top, folders, files in os.walk(self._full(path)):
            links = [f for f in folders if os.path.islink(top + b"/" + f)]
            for name in (*files, *links):
                if name.startswith(_TEMPORARY.encode()):
                    continue
                yield (top + b"/" + name)[len(self.folder) + 1 :]

    def everything(self, path: bytes = b"") -> Iterator[bytes]:
        """Every file of the tree or of a folder in it, what is no file and no folder either among them; of a repository in
        it the folder alone, with '/' at its end."""
        for top, folders, files in os.walk(self._full(path) if path else self.folder):
            at = (top + b"/")[len(self.folder) + 1 :]
            if at and b".git" in (*folders, *files):
                yield at
                folders.clear()
                continue
            folders[:] = [f for f in folders if at or f != b".git"]
            yield from (at + name for name in (*files, *(f for f in folders if os.path.islink(top + b"/" + f))))

    def create(self, path: bytes, entry: TreeEntry, data: bytes) -> None:
        """Put a file where there is none, in a folder that is nobody else's yet: what is left half-written goes with the folder."""
        self._make_parents(path)
        full = self._full(path)
        if entry.mode == GITLINK:
            os.mkdir(full)
        elif entry.mode == SYMLINK:
            os.symlink(data, full)
        else:
            self.written[path] = self._write_new(full, None, entry.mode, data, keep_mode=False)

    def move_to(self, folder: Path) -> None:
        """The folder has been renamed to this."""
        self.folder = os.fsencode(folder)

    def write(self, path: bytes, entry: TreeEntry, data: bytes, *, keep_mode: bool = False) -> None:
        """Put a file there, in place of whatever file is there now, with the mode that `entry` says; with `keep_mode` it keeps every bit
        of the mode that it has now."""
        self._make_parents(path)
        full, temporary = self._full(path), self._temporary(path)
        if entry.mode == GITLINK:
            os.makedirs(full, exist_ok=True)
            return
        before = self._status(path)
        try:
            if entry.mode == SYMLINK:
                self.clean(path)
                os.symlink(data, temporary)
            else:
                self.written[path] = self._write_new(temporary, before, entry.mode, data, keep_mode=keep_mode)
            if before is not None and stat.S_ISDIR(before.st_mode):
                _remove_empty(full)
            os.replace(temporary, full)
        except OSError:
            self.clean(path)
            raise

    def drop_bytecode(self, path: bytes) -> None:
        """Take away what Python compiled of a module: a time and a size in it are all that tells it from what is to come,
        and byte code that was compiled "unchecked" would be run in any case."""
        folder, _, name = path.rpartition(b"/")
        cache = folder + b"/__pycache__" if folder else b"__pycache__"
        if not name.endswith(b".py") or not self._parents_are_real(cache + b"/x"):
            return
        for found in os.listdir(self._full(cache)):
            if bytecode_of(name[:-2], found):
                os.unlink(self._full(cache + b"/" + found))

    def remove(self, path: bytes) -> None:
        """Take a file away, and the folders above it that become empty."""
        if not self._parents_are_real(path):
            return
        self.clean(path)
        full = self._full(path)
        try:
            os.unlink(full)
        except FileNotFoundError:
            pass
        except OSError:
            if not os.path.isdir(full):
                raise
            try:
                os.rmdir(full)  # a submodule's folder; one that holds something stays
            except OSError:
                return
        self._remove_parents(path)

    def _remove_parents(self, path: bytes) -> None:
        parent = path.rpartition(b"/")[0]
        while parent:
            try:
                os.rmdir(self._full(parent))
            except OSError:
                return
            self._real.discard(parent)
            parent = parent.rpartition(b"/")[0]

    def clean(self, path: bytes) -> None:
        """Remove what a killed run may have left beside this path."""
        try:
            os.unlink(self._temporary(path))
        except (FileNotFoundError, NotADirectoryError):
            pass

    def _write_new(
        self, temporary: bytes, before: os.stat_result | None, mode: int, data: bytes, *, keep_mode: bool
    ) -> tuple[int, int, int, int]:
        """Returns device, inode, size and time of it."""
        most = 0o777 if mode == EXECUTABLE else 0o666
        replaced = before is not None and stat.S_ISREG(before.st_mode)
        out = _opened_new(
            temporary, 0o600 if replaced else most
        )  # what replaces a private file is private from the start
        try:
            _write_all(out, data)
            if before is not None and replaced:
                _own_like(out, (before.st_uid, before.st_gid))
                kept = before.st_mode & 0o777
                os.fchmod(out, kept if keep_mode else (kept & ~0o111) | (most & 0o111 & ~self._umask))
            else:
                _own_like(out, self._owner(os.path.dirname(temporary)))
            # A file of the second in which the index is written is read by every later git, and by us, to be sure of it
            # (Documentation/technical/racy-git.txt); one that says an earlier time is not, and an edit says a later one.
            past = time.time_ns() - _BEFORE_NS
            os.utime(out, ns=(past, past))
            made = os.fstat(out)
            return made.st_dev, made.st_ino, made.st_size, made.st_mtime_ns
        finally:
            os.close(out)

    def _owner(self, folder: bytes) -> tuple[int, int]:
        if folder not in self._owners:
            status = os.lstat(folder)
            self._owners[folder] = status.st_uid, status.st_gid
        return self._owners[folder]

    def _status(self, path: bytes) -> os.stat_result | None:
        if not self._parents_are_real(path):
            return None
        try:
            return os.lstat(self._full(path))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _full(self, path: bytes) -> bytes:
        return self.folder + b"/" + path

    def _temporary(self, path: bytes) -> bytes:
        folder, _, name = path.rpartition(b"/")
        short = _TEMPORARY.encode() + hashlib.sha1(name, usedforsecurity=False).hexdigest()[:16].encode()
        return self._full(folder + b"/" + short if folder else short)

    def _parents(self, path: bytes) -> list[bytes]:
        parts = path.split(b"/")[:-1]
        return [b"/".join(parts[: i + 1]) for i in range(len(parts))]

    def _parents_are_real(self, path: bytes) -> bool:
        above = path.rpartition(b"/")[0]
        if not above or above in self._real:
            return True
        for parent in self._parents(path):
            if parent in self._real:
                continue
            try:
                status = os.lstat(self._full(parent))
            except (FileNotFoundError, NotADirectoryError):
                return False
            if not stat.S_ISDIR(status.st_mode):
                return False
            self._real.add(parent)
        return True

    def _make_parents(self, path: bytes) -> None:
        if path.rpartition(b"/")[0] in self._real:
            return
        for parent in self._parents(path):
            if parent in self._real:
                continue
            full = self._full(parent)
            try:
                os.mkdir(full)
                _own_like(full, self._owner(os.path.dirname(full)))
            except FileExistsError:
                if not stat.S_ISDIR(os.lstat(full).st_mode):
                    name = os.fsdecode(full)
                    raise LocalEdits(message("a folder of the tree was replaced by a file or a link"), [name]) from None
            self._real.add(parent)


def bytecode_of(stem: bytes, name: bytes) -> bool:
    """Whether a file of `__pycache__` is what a Python compiled of the module whose name, with the dot, is `stem`:
    hello.cpython-311.opt-1.pyc; hello.pyc is not, no Python reads it there."""
    return name.startswith(stem) and name.endswith(b".pyc") and len(name) > len(stem) + len(b".pyc")


def _content(full: bytes, size: int) -> bytes:
    """All of a file, which had this size. Thousands are read in a run: a file object costs as much as the read."""
    file = os.open(full, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(file, size + 1)
        if len(data) != size:  # it changes just now, or is larger than one call reads
            while piece := os.read(file, 1 << 20):
                data += piece
        return data
    finally:
        os.close(file)


def _opened_new(path: bytes, mode: int) -> int:
    """A new file, open for writing, in place of what a killed run may have left there."""
    try:
        return _new(path, mode)
    except FileExistsError:
        os.unlink(path)
        return _new(path, mode)


def _new(path: bytes, mode: int) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)


def _write_all(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


def _remove_empty(folder: bytes) -> None:
    """Where a folder becomes a file, take its empty folders away: its files went before."""
    for top, _, _ in os.walk(folder, topdown=False):
        os.rmdir(top)


def _own_like(file: int | bytes, owner: tuple[int, int]) -> None:
    """A checkout in an image may belong to another user than the one who patches it."""
    if owner != (os.geteuid(), os.getegid()):
        try:
            os.chown(file, *owner)
        except PermissionError:
            pass  # not root: the file becomes ours, as with any editor that saves by rename
