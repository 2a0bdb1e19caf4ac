"""The files of a distribution's pins: each tree's list, and the versions that the stack's patches make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from patchctl.git.objects import GITLINK, Files
from patchctl.identify.lists import read_tree_list
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.lock import LockedPatch, StackLock, read_lock
from patchctl.manifest.types import Stack


@dataclass(frozen=True)
class FileState:
    """A version of a file: its blob id (None: absent) with the patches `applied`, by number."""

    id: str | None
    applied: frozenset[int]


@dataclass(frozen=True)
class KnownTree:
    """A stack's pin. `packages` are folders ending with '/'; `generated` are files that upstream's build writes."""

    stack: Stack
    patch_files: Mapping[str, Path]
    source: str
    files: Files
    packages: tuple[bytes, ...]
    generated: frozenset[bytes]
    lock: StackLock | None

    @property
    def upstream(self) -> str:
        return self.stack.upstream

    @property
    def patches(self) -> Sequence[LockedPatch]:
        return self.lock.patches if self.lock else ()

    @cached_property
    def submodules(self) -> frozenset[bytes]:
        return frozenset(p for p, e in self.files.items() if e.mode == GITLINK)

    @cached_property
    def touched(self) -> dict[bytes, tuple[int, ...]]:
        """Files that patches change or add, with the numbers of those patches in order."""
        found: dict[bytes, tuple[int, ...]] = {}
        for number, patch in enumerate(self.patches):
            for file in patch.files or ():
                path = file.path.encode("utf-8", "surrogateescape")
                found[path] = (*found.get(path, ()), number)
        return found

    @cached_property
    def states(self) -> dict[bytes, tuple[FileState, ...]]:
        """The versions of each touched file: at the pin and after each patch of the full stack, last first.

        Last first, since a file left unchanged by the later of two patches counts as having both.
        """
        found: dict[bytes, tuple[FileState, ...]] = {}
        for path, numbers in self.touched.items():
            entry = self.files.get(path)
            chain = [FileState(entry.id if entry else None, frozenset())]
            for position, number in enumerate(numbers):
                chain.append(FileState(self._after(number, path), frozenset(numbers[: position + 1])))
            found[path] = tuple(reversed(chain))
        return found

    def _after(self, number: int, path: bytes) -> str | None:
        after = [f.after for f in self.patches[number].files or () if f.path.encode("utf-8", "surrogateescape") == path]
        return after[-1][1] if after and after[-1] else None

    @cached_property
    def folders(self) -> frozenset[bytes]:
        """Folders that directly contain files; the root is b""."""
        return frozenset(p.rpartition(b"/")[0] for p in self.files)

    @cached_property
    def folder_names(self) -> frozenset[bytes]:
        return frozenset(part for path in self.files for part in path.split(b"/")[:-1])

    def in_package(self, path: bytes) -> bool:
        """Whether an import of the upstream's packages could find this file."""
        return path.startswith(self.packages)

    def is_module(self, path: bytes) -> bool:
        """Whether every installation has this file: `find_packages` skips folders without `__init__.py`."""
        init = path.rpartition(b"/")[0] + b"/__init__.py"
        return self.in_package(path) and path.endswith(b".py") and init in self.files


def known_trees(dist: Distribution) -> list[KnownTree]:
    """Return every stack with a committed file list. Raises BadManifest for a damaged list or lock."""
    found = []
    for stack in dist.stacks.values():
        listed = read_tree_list(dist.root, stack)
        if listed is None:
            continue
        packages = tuple(f"{p}/".encode() for p in dist.upstream(stack.upstream).packages.values())
        generated = frozenset(g.path.encode() for g in stack.generated)
        lock = read_lock(dist.root, stack)
        patch_files = {file.name: file for file in dist.patch_files(stack)}
        found.append(KnownTree(stack, patch_files, listed.source, listed.files, packages, generated, lock))
    return found
