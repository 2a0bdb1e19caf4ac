"""The patches of a stack in the order they apply, and the files on disk that they are."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from patchctl.manifest.types import Stack

Stacks = Mapping[tuple[str, str], Stack]
# What lies in a feature's folder beside its patch: files that it carries, what proves it, and the record of that.
CARRIED, TESTS, MUTANTS, RECORD = "files", "tests", "mutants", "evidence.json"


@dataclass(frozen=True)
class Patch:
    """A patch file, and the stack whose folder holds it: with `extends`, another than the one that is applied."""

    upstream: str
    stack: str
    file: str

    @property
    def path(self) -> str:
        """Below the distribution's root, with '/'."""
        return f"patches/{self.upstream}/{self.stack}/{place_of(self.file)}"


def feature_of(file: str) -> str:
    """The feature that a patch file is named for: FEATURE of NNNN-kind-FEATURE.patch."""
    return file.split("-", 2)[2].removesuffix(".patch")


def place_of(file: str) -> str:
    """Where a patch file lies below its stack's folder: in the folder of its feature."""
    return f"{feature_of(file)}/{file}"


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


def descent(stack: Stack, stacks: Stacks) -> list[Stack]:
    """The stack, the one that it comes from or extends, and so on: where what proves a feature is looked for."""
    chain = [stack]
    while (parent := stacks.get((stack.upstream, chain[-1].comes_from or chain[-1].extends or ""))) is not None:
        if parent in chain:
            break
        chain.append(parent)
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
    upstreams = {u for u, _ in stacks}
    found: list[Path] = []
    for upstream in _folder(root / "patches"):
        if upstream.name not in upstreams or not upstream.is_dir():
            found.append(upstream)
            continue
        for stack in _folder(upstream):
            known = stacks.get((upstream.name, stack.name))
            if known is None or not stack.is_dir():
                found.append(stack)
            else:
                found.extend(_unlisted_below(stack, known, stacks))
    return found


def _unlisted_below(folder: Path, stack: Stack, stacks: Stacks) -> Iterator[Path]:
    """What lies in a stack's folder and is neither the folder of a feature that it has nor a part of one. Of a feature that
    it has from the stack that it extends, it keeps what proves it."""
    listed = {*map(place_of, own_files(stack))}
    own = {place.partition("/")[0] for place in listed}
    features = own | {feature_of(patch.file) for patch in resolve(stack, stacks)}
    for entry in _folder(folder):
        if entry.name not in features or not entry.is_dir():
            yield entry
            continue
        parts = {TESTS, MUTANTS, RECORD} | ({CARRIED} if entry.name in own else set())
        for part in _folder(entry):
            if part.name not in parts and f"{entry.name}/{part.name}" not in listed:
                yield part


def _folder(path: Path) -> list[Path]:
    """Its entries, sorted, less hidden ones; none where it is missing."""
    if not path.is_dir():
        return []
    return sorted(e for e in path.iterdir() if not e.name.startswith("."))
