"""What a distribution knows of its pins' files: the list of each tree, and what the stack's patches make of it."""

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
    """What a file can be: its blob id (None: not there) with the numbers of the patches `applied`."""

    id: str | None
    applied: frozenset[int]


@dataclass(frozen=True)
class KnownTree:
    """A stack's pin. `packages` are folders, each with '/' at its end; `generated`: what upstream's build writes."""

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
        """The files that patches change or add, each with the numbers of those patches in their order."""
        found: dict[bytes, tuple[int, ...]] = {}
        for number, patch in enumerate(self.patches):
            for file in patch.files or ():
                path = file.path.encode("utf-8", "surrogateescape")
                found[path] = (*found.get(path, ()), number)
        return found

    @cached_property
    def states(self) -> dict[bytes, tuple[FileState, ...]]:
        """What each touched file is at the pin, and after each patch of the whole stack; the last one first, since a
        file that two patches leave the same has both."""
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
        """The folders that hold files themselves; the tree's own is empty."""
        return frozenset(p.rpartition(b"/")[0] for p in self.files)

    @cached_property
    def folder_names(self) -> frozenset[bytes]:
        return frozenset(part for path in self.files for part in path.split(b"/")[:-1])

    def in_package(self, path: bytes) -> bool:
        """Whether an interpreter would find this file when it imports one of the upstream's packages."""
        return path.startswith(self.packages)

    def is_module(self, path: bytes) -> bool:
        """Whether every installation has it: `find_packages` leaves out files in folders without `__init__.py`."""
        init = path.rpartition(b"/")[0] + b"/__init__.py"
        return self.in_package(path) and path.endswith(b".py") and init in self.files


def known_trees(dist: Distribution) -> list[KnownTree]:
    """Every stack whose list of files is checked in. Raises BadManifest for a damaged list or lock."""
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
