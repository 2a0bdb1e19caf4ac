"""Lists a folder once, and reads files on demand.

Symbolic links are never followed, and only regular files are opened: a FIFO would block.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from patchctl.git.objects import EXECUTABLE, REGULAR, SYMLINK, object_id

# Not part of source trees; those that could be (`build`, `venv`) are scanned if a known tree has the name.
_PASSED_BY = frozenset(
    b".git .hg .svn .venv .tox .nox .eggs .mypy_cache .pytest_cache .ruff_cache .hypothesis .patchctl"
    b" __pycache__ node_modules venv build dist".split()
)
_PASSED_BY_ENDS = (b".egg-info", b".dist-info")
BUILD_OUTPUTS = (b".so", b".pyd", b".dylib", b".dll", b".o", b".a", b".pyc", b".pyo", b".egg-link")
_LARGEST = 1 << 28


@dataclass(frozen=True)
class FileContent:
    """A file's blob id and mode. `lf_id` is its id with LF line ends, None if it has no CRLF."""

    id: str
    mode: int
    lf_id: str | None = None


@dataclass
class Folder:
    """The names below a folder. `files` maps a path (bytes, '/') to its mode; 0 for types that git does not store.

    `is_site_packages`: there is a .dist-info, so files beside the packages can belong to anyone.
    """

    path: Path
    files: dict[bytes, int] = field(default_factory=dict)
    passed_by: int = 0
    is_site_packages: bool = False
    unreadable: list[bytes] = field(default_factory=list)
    _contents: dict[bytes, FileContent | str] = field(default_factory=dict)

    def content(self, path: bytes) -> FileContent | str:
        """Return the content of the file at `path`, read once, or why it cannot be read."""
        if path not in self._contents:
            self._contents[path] = self._read(path)
        return self._contents[path]

    def data(self, path: bytes) -> bytes:
        """Return the bytes of a regular file. Raises OSError."""
        return _regular_bytes(self._full(path))

    def _full(self, path: bytes) -> bytes:
        return os.fsencode(self.path) + b"/" + path

    def _read(self, path: bytes) -> FileContent | str:
        mode = self.files[path]
        try:
            if mode == SYMLINK:
                return FileContent(object_id("blob", os.readlink(self._full(path))), mode)
            if mode == 0:
                return "is no regular file"
            data = _regular_bytes(self._full(path))
        except OSError as error:
            return f"cannot be read: {error.strerror or error}"
        lf_id = object_id("blob", data.replace(b"\r\n", b"\n")) if b"\r\n" in data else None
        return FileContent(object_id("blob", data), mode, lf_id)


def _regular_bytes(full: bytes) -> bytes:
    """Read a regular file, checked again after opening, since it may have been replaced."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with open(os.open(full, flags), "rb") as source:
        status = os.fstat(source.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "it is no regular file")
        if status.st_size > _LARGEST:
            raise OSError(0, f"it is larger than {_LARGEST >> 20} MiB")
        return source.read()


def scan(path: Path, known_folders: Collection[bytes], submodules: Collection[bytes]) -> Folder:
    """List a folder, names and modes only.

    `known_folders` are folder names in known trees; `submodules` are paths of submodules, whose content is not the
    tree's.
    """
    found = Folder(path)
    skipped = _PASSED_BY - {*known_folders}
    pending = [b""]
    while pending:
        prefix = pending.pop()
        try:
            with os.scandir(os.fsencode(path) + b"/" + prefix) as entries:
                listed = sorted(entries, key=lambda e: e.name)
        except OSError:
            found.unreadable.append(prefix.rstrip(b"/") or b".")
            continue
        for entry in listed:
            name = prefix + entry.name
            if entry.is_dir(follow_symlinks=False):
                if _is_passed_by(entry, skipped) or name in submodules:
                    found.passed_by += 1
                    found.is_site_packages |= not prefix and name.endswith(b".dist-info")
                else:
                    pending.append(name + b"/")
            else:
                found.files[name] = _mode(entry)
    return found


def _is_passed_by(entry: os.DirEntry[bytes], skipped: Collection[bytes]) -> bool:
    if entry.name in skipped or entry.name.endswith(_PASSED_BY_ENDS):
        return True
    return os.path.lexists(os.path.join(entry.path, b"pyvenv.cfg"))


def _mode(entry: os.DirEntry[bytes]) -> int:
    try:
        mode = entry.stat(follow_symlinks=False).st_mode
    except OSError:
        return 0
    if stat.S_ISLNK(mode):
        return SYMLINK
    if not stat.S_ISREG(mode):
        return 0
    return EXECUTABLE if mode & 0o100 else REGULAR
