"""What lies in a folder: every name once, and the content of those files that somebody asks for.

Symbolic links are never followed, and nothing but regular files is opened: a FIFO would wait for ever.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from patchctl.git.objects import EXECUTABLE, REGULAR, SYMLINK, object_id

# Never a part of a source tree; some (`build`, `venv`) could be, and are looked into when a known tree has the name.
_PASSED_BY = frozenset(
    b".git .hg .svn .venv .tox .nox .eggs .mypy_cache .pytest_cache .ruff_cache .hypothesis .patchctl"
    b" __pycache__ node_modules venv build dist".split()
)
_PASSED_BY_ENDS = (b".egg-info", b".dist-info")
BUILD_OUTPUTS = (b".so", b".pyd", b".dylib", b".dll", b".o", b".a", b".pyc", b".pyo", b".egg-link")
_LARGEST = 1 << 28


@dataclass(frozen=True)
class FileContent:
    """A file's blob id and mode; `lf_id` is the id that it would have with LF line ends, None where it has no CRLF."""

    id: str
    mode: int
    lf_id: str | None = None


@dataclass
class Folder:
    """The names below a folder. `files` maps a path (bytes, '/') to its mode; 0 for what git does not keep.

    `is_site_packages`: an installer keeps its records here, so that what lies beside the packages is anybody's.
    """

    path: Path
    files: dict[bytes, int] = field(default_factory=dict)
    passed_by: int = 0
    is_site_packages: bool = False
    unreadable: list[bytes] = field(default_factory=list)
    _contents: dict[bytes, FileContent | str] = field(default_factory=dict)

    def content(self, path: bytes) -> FileContent | str:
        """What is in the file at `path`, read once; or why it cannot be told, in a few words."""
        if path not in self._contents:
            self._contents[path] = self._read(path)
        return self._contents[path]

    def data(self, path: bytes) -> bytes:
        """The bytes of a regular file. Raises OSError."""
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
    """The file may have been replaced since it was listed: what is opened is looked at again."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with open(os.open(full, flags), "rb") as source:
        status = os.fstat(source.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "it is no regular file")
        if status.st_size > _LARGEST:
            raise OSError(0, f"it is larger than {_LARGEST >> 20} MiB")
        return source.read()


def scan(path: Path, known_folders: Collection[bytes], submodules: Collection[bytes]) -> Folder:
    """List a folder, by names and modes only. `known_folders` are names of folders that some known tree has;
    `submodules` are paths that a tree has as a submodule, whose content is another project's."""
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
