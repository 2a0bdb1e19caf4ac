"""What two images differ in, less times: those of files, in the headers of byte code and git's logs of references, and what git's index
keeps of each file's stat."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import struct
from pathlib import Path

from images import buildah

_INDEX_ENTRY = (
    62  # stat 40, id 20, flags 2; then the path, with zeros up to a multiple of 8 (gitformat-index, version 2)
)
_TIMES_AND_INODE = 24


def differences(one: str, other: str) -> list[str]:
    """The paths that are not the same in both: kind, mode, owner, target of a link, or content."""
    first, second = _files(one), _files(other)
    return sorted(path for path in first.keys() | second.keys() if first.get(path) != second.get(path))


def _files(image: str) -> dict[str, tuple[int, int, int, str]]:
    container = buildah("from", "--pull-never", image).stdout.strip()
    try:
        top = Path(buildah("mount", container).stdout.strip())
        found = {}
        for folder, folders, names in os.walk(top):
            for name in (*folders, *names):
                path = Path(folder, name)
                state = path.lstat()
                key = path.relative_to(top).as_posix()
                found[key] = (state.st_mode, state.st_uid, state.st_gid, _content(path, state.st_mode))
        return found
    finally:
        buildah("rm", container)


def _content(path: Path, mode: int) -> str:
    if stat.S_ISLNK(mode):
        return os.readlink(path)
    if not stat.S_ISREG(mode):
        return ""
    data = bytearray(path.read_bytes())
    if path.suffix == ".pyc" and data[4:8] == bytes(4):  # told from its source by time and size (PEP 552)
        data[8:12] = bytes(4)
    if path.parent.name == "logs" and path.name == "HEAD":
        data = bytearray(re.sub(rb"(?m)^([0-9a-f]{40} [0-9a-f]{40} .*>) \d+ ", rb"\1 ", data))
    if path.name == "index" and data[:4] == b"DIRC":
        _forget_stat(data)
    return hashlib.sha256(data).hexdigest()


def _forget_stat(index: bytearray) -> None:
    version, entries = struct.unpack(">2I", index[4:12])
    assert version == 2, version
    at = 12
    for _ in range(entries):
        index[at : at + _TIMES_AND_INODE] = bytes(_TIMES_AND_INODE)
        path_ends = index.index(0, at + _INDEX_ENTRY)
        at += (path_ends - at + 8) // 8 * 8
    index[-20:] = bytes(20)  # the checksum over all this
