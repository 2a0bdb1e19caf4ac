"""A stack's patches as loaded from the distribution: bytes read once, parsed, with carried files and digests."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path

from patchctl.errors import BadPatch, Where
from patchctl.manifest.series import CARRIED, shared_folder
from patchctl.patch.header import Header
from patchctl.patch.parse import MAX_PATCH, LatePatch, Patch
from patchctl.patch.policy import check_carried, check_patch

CARRIED_FOLDER = CARRIED


@dataclass(frozen=True)
class StackPatch:
    """A patch of a stack. `data` is read once: what is hashed is what is applied."""

    file: Path
    shown: str
    data: bytes
    patch: Patch
    carried: dict[str, bytes]

    @property
    def header(self) -> Header:
        return self.patch.header

    @property
    def feature(self) -> str:
        """The feature's name: the `Feature:` trailer, else the file's stem."""
        return self.header.trailer("Feature") or self.file.stem

    @property
    def requires(self) -> list[tuple[str, str | None]]:
        """(feature, upstream, or None for the same one) of every `Requires:`."""
        pairs = [r.partition("@") for r in self.header.listed("Requires")]
        return [(name, upstream or None) for name, _, upstream in pairs]

    @cached_property
    def digest(self) -> str:
        """sha256 over the patch's bytes and each carried file's path and bytes."""
        return self._with_carried(hashlib.sha256(hashlib.sha256(self.data).digest()))

    @cached_property
    def change_digest(self) -> str:
        """sha256 over changes with context, switch and carried files; what evidence is bound to.

        Line numbers, the rest of each file and the header's text do not count, so that other patches or a better
        sentence leave a proof valid.
        """
        total = hashlib.sha256(repr(self.header.listed("Switch")).encode())
        for c in self.patch.changes:
            hunks = [(h.marks, h.old, h.new) for h in c.hunks]
            binary = (c.old_id, c.new_id) if c.binary else None
            total.update(repr((c.kind, c.old_path, c.new_path, c.old_mode, c.new_mode, hunks, binary)).encode())
        return self._with_carried(total)

    def _with_carried(self, total: hashlib._Hash) -> str:
        for path in sorted(self.carried):
            total.update(path.encode() + b"\0" + hashlib.sha256(self.carried[path]).digest())
        return total.hexdigest()

    @property
    def paths(self) -> set[bytes]:
        """Every path of the upstream tree that the patch reads or writes."""
        names = {p for c in self.patch.changes for p in (c.old_path, c.new_path) if p is not None}
        return names | {p.encode() for p in self.carried}


def load_patch(file: Path, root: Path) -> StackPatch:
    """Read and parse a patch and its carried files. Shown paths are relative to `root`. Raises BadPatch."""
    return parsed(load_unparsed(file, root))


def load_unparsed(file: Path, root: Path) -> StackPatch:
    """Like `load_patch`, but parse only the header, for patches that were `parsed` before. Raises BadPatch."""
    shown = _shown(file, root)
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):  # reading a FIFO would block
            raise BadPatch("not a regular file", where=Where(shown))
        if status.st_size > MAX_PATCH:
            raise BadPatch(f"the patch is larger than {MAX_PATCH // 2**20} MiB", where=Where(shown))
        data = file.read_bytes()
    except OSError as error:
        raise BadPatch(f"cannot be read: {error.strerror}", where=Where(shown)) from error
    patch = LatePatch(data, shown)
    return StackPatch(file, shown, data, patch, _carried(file, patch))


def parsed(one: StackPatch) -> StackPatch:
    """Parse and check a patch that was loaded unparsed. Raises BadPatch."""
    patch = one.patch
    check_patch(patch)
    changed = {c.path for c in patch.changes}
    twice = next((path for path in one.carried if path.encode() in changed), None)
    if twice is not None:
        line = next(t.line for t in patch.header.trailers["Carries"] if twice in t.value)
        raise _carried_twice(twice, Where(one.shown, line))
    return one


def _carried_twice(path: str, where: Where) -> BadPatch:
    return BadPatch(f"{path} is carried twice, or carried and changed by the diff", where=where)


def carried_folder(file: Path, path: str) -> Path:
    """Return the folder with a file that the patch `file` carries: next to the patch, else where stacks share it."""
    own, shared = (folder / CARRIED_FOLDER for folder in (file.parent, shared_folder(file.parent)))
    return shared if not os.path.lexists(own / path) and os.path.lexists(shared / path) else own


def _carried(file: Path, patch: Patch) -> dict[str, bytes]:
    carried: dict[str, bytes] = {}
    for trailer in patch.header.trailers.get("Carries", []):
        for path in (p.strip() for p in trailer.value.split(",") if p.strip()):
            check_carried(path, patch, trailer.line)
            folder = carried_folder(file, path)
            source = folder / path
            where = Where(patch.name, trailer.line)
            if path in carried:
                raise _carried_twice(path, where)
            ways = accumulate([str(folder), *path.split("/")], os.path.join)
            if any(map(os.path.islink, ways)) or not os.path.isfile(source):
                raise BadPatch(
                    f"carries {path}, but {CARRIED_FOLDER}/{path} next to the patch is not a file", where=where
                )
            carried[path] = source.read_bytes()
    return carried


def _shown(file: Path, root: Path) -> str:
    try:
        return file.relative_to(root).as_posix()
    except ValueError:
        return str(file)
