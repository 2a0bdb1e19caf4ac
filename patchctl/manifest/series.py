"""The patches of a stack in the order they apply, and the files on disk that they are."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from patchctl.manifest.types import Stack
from patchctl.values import dataclass

Stacks = Mapping[tuple[str, str], Stack]


@dataclass(frozen=True)
class Patch:
    """A patch file, and the stack whose folder holds it: with `extends`, another than the one that is applied."""

    upstream: str
    stack: str
    file: str

    @property
    def path(self) -> str:
        """Below the distribution's root, with '/'."""
        return f"patches/{self.upstream}/{self.stack}/{self.file}"


class Cycle(ValueError):
    """Stacks that extend each other. `names` is the way round."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(" extends ".join(names))
        self.names = names


def ancestry(stack: Stack, stacks: Stacks) -> list[Stack]:
    """The stack, the one it extends, and so on. Ends where one is missing. Raises Cycle."""
    chain = [stack]
    while (parent := chain[-1].extends) is not None and (stack.upstream, parent) in stacks:
        if parent in [s.name for s in chain]:
            raise Cycle([*(s.name for s in chain), parent])
        chain.append(stacks[stack.upstream, parent])
    return chain


def resolve(stack: Stack, stacks: Stacks) -> list[Patch]:
    """The patches in the order they apply: the extended stack's, replaced where `replace` says so, then our own."""
    patches: list[Patch] = []
    for level in reversed(ancestry(stack, stacks)):
        patches = [
            Patch(level.upstream, level.name, level.replace[p.file]) if p.file in level.replace else p for p in patches
        ]
        patches += [Patch(level.upstream, level.name, file) for file in level.patches]
    return patches


def own_files(stack: Stack) -> list[str]:
    """The files that must lie in the stack's own folder."""
    return [*stack.patches, *stack.replace.values()]


def is_there(root: Path, patch: Patch) -> bool:
    """Whether it is a regular file of this folder: a link could lead out of the distribution."""
    try:
        return stat.S_ISREG(os.lstat(root / patch.path).st_mode)
    except OSError:
        return False


def missing_files(root: Path, stacks: Stacks) -> list[Patch]:
    """The patches that stacks name and that are not there."""
    named = (Patch(s.upstream, s.name, file) for s in stacks.values() for file in own_files(s))
    return [patch for patch in named if not is_there(root, patch)]


def unlisted(root: Path, stacks: Stacks) -> list[Path]:
    """What lies in patches/ and belongs to no stack. Carried files (files/) belong to patches: not looked at here."""
    known = {f"{u}/{n}": {*own_files(s), "files"} for (u, n), s in stacks.items()}
    upstreams = {u for u, _ in stacks}
    found: list[Path] = []
    for upstream in _folder(root / "patches"):
        if upstream.name not in upstreams or not upstream.is_dir():
            found.append(upstream)
            continue
        for stack in _folder(upstream):
            listed = known.get(f"{upstream.name}/{stack.name}")
            if listed is None or not stack.is_dir():
                found.append(stack)
            else:
                found.extend(entry for entry in _folder(stack) if entry.name not in listed)
    return found


def _folder(path: Path) -> list[Path]:
    """Its entries, sorted, less hidden ones; none where it is missing."""
    if not path.is_dir():
        return []
    return sorted(e for e in path.iterdir() if not e.name.startswith("."))
