"""The patches of a stack in the order they apply, and their files on disk."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from patchctl.manifest.types import Stack

Stacks = Mapping[tuple[str, str], Stack]
# What a feature's folder has besides its patch: carried files, tests, mutations, and the record of their runs.
CARRIED, TESTS, MUTANTS, RECORD = "files", "tests", "mutants", "evidence.json"
# In the files that `new` writes, where a person has to go on.
TO_FILL_IN = "TODO(new)"
# What its pull request has besides, at its place in upstream's tree: tests for upstream's own suites. No patched tree gets it.
PROPOSED = "pull_request"
# The folder beside an upstream's stacks with what several of them have, byte for byte: SHARED/FEATURE/{files,tests,mutants}.
SHARED = "shared"


@dataclass(frozen=True)
class SeriesPatch:
    """A patch file and the stack whose folder has it: with `extends`, not the stack being applied."""

    upstream: str
    stack: str
    file: str

    @property
    def path(self) -> str:
        """The path below the distribution's root, with '/'."""
        return f"patches/{self.upstream}/{self.stack}/{place_of(self.file)}"


def feature_of(file: str) -> str:
    """Return the feature in a patch file's name: FEATURE of NNNN-kind-FEATURE.patch."""
    return file.split("-", 2)[2].removesuffix(".patch")


def place_of(file: str) -> str:
    """Return a patch file's path below its stack's folder, inside its feature's folder."""
    return f"{feature_of(file)}/{file}"


def shared_folder(feature: Path) -> Path:
    """Return the folder with what the upstream's stacks share of a feature, given the folder that one of them has for it."""
    return feature.parent.parent / SHARED / feature.name


class Cycle(ValueError):
    """Stacks that extend each other. `names` is the cycle."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(" extends ".join(names))
        self.names = names


def ancestry(stack: Stack, stacks: Stacks) -> list[Stack]:
    """Return the stack, the one it extends, and so on until one is missing. Raises Cycle."""
    chain = [stack]
    while (parent := chain[-1].extends) is not None and (stack.upstream, parent) in stacks:
        if parent in [s.name for s in chain]:
            raise Cycle([*(s.name for s in chain), parent])
        chain.append(stacks[stack.upstream, parent])
    return chain


def descent(stack: Stack, stacks: Stacks) -> list[Stack]:
    """Return the stack, the one it comes from or extends, and so on: where a feature's tests are looked up."""
    chain = [stack]
    while (parent := stacks.get((stack.upstream, chain[-1].comes_from or chain[-1].extends or ""))) is not None:
        if parent in chain:
            break
        chain.append(parent)
    return chain


def resolve(stack: Stack, stacks: Stacks) -> list[SeriesPatch]:
    """Return the patches in order: the extended stack's, with those in `replace` replaced, then its own."""
    patches: list[SeriesPatch] = []
    for level in reversed(ancestry(stack, stacks)):
        patches = [
            SeriesPatch(level.upstream, level.name, level.replace[p.file]) if p.file in level.replace else p
            for p in patches
        ]
        patches += [SeriesPatch(level.upstream, level.name, file) for file in level.patches]
    return patches


def own_files(stack: Stack) -> list[str]:
    """Return the files that must be in the stack's own folder."""
    return [*stack.patches, *stack.replace.values()]


def is_there(root: Path, patch: SeriesPatch) -> bool:
    """Whether the patch is a regular file here: a link could lead out of the distribution."""
    try:
        return stat.S_ISREG(os.lstat(root / patch.path).st_mode)
    except OSError:
        return False


def missing_files(root: Path, stacks: Stacks) -> list[SeriesPatch]:
    """Return the listed patches that do not exist."""
    named = (SeriesPatch(s.upstream, s.name, file) for s in stacks.values() for file in own_files(s))
    return [patch for patch in named if not is_there(root, patch)]


def unlisted(root: Path, stacks: Stacks) -> list[Path]:
    """Return what in patches/ belongs to no stack. Carried files belong to patches and are not checked here."""
    upstreams = {u for u, _ in stacks}
    found: list[Path] = []
    for upstream in _folder(root / "patches"):
        if upstream.name not in upstreams or not upstream.is_dir():
            found.append(upstream)
            continue
        for stack in _folder(upstream):
            known = stacks.get((upstream.name, stack.name))
            if stack.name == SHARED and stack.is_dir():
                found.extend(_unlisted_shared(stack, stacks))
            elif known is None or not stack.is_dir():
                found.append(stack)
            else:
                found.extend(_unlisted_below(stack, known, stacks))
    return found


def _unlisted_shared(folder: Path, stacks: Stacks) -> Iterator[Path]:
    """Yield what in an upstream's shared folder belongs to no feature of any of its stacks.

    Tests may stay without the feature: tests of others run the probes of one that upstream has made superfluous.
    """
    of_upstream = [stack for (upstream, _), stack in stacks.items() if upstream == folder.parent.name]
    features = {feature_of(patch.file) for stack in of_upstream for patch in resolve(stack, stacks)}
    for entry in _folder(folder):
        parts = {TESTS} | ({CARRIED, MUTANTS, PROPOSED} if entry.name in features else set())
        if not entry.is_dir():
            yield entry
        yield from (part for part in _folder(entry) if part.name not in parts)


def _unlisted_below(folder: Path, stack: Stack, stacks: Stacks) -> Iterator[Path]:
    """Yield what in a stack's folder belongs to none of its features.

    For an inherited feature, the folder may have tests, mutations and the record.
    """
    listed = {*map(place_of, own_files(stack))}
    own = {place.partition("/")[0] for place in listed}
    features = own | {feature_of(patch.file) for patch in resolve(stack, stacks)}
    for entry in _folder(folder):
        if entry.name not in features or not entry.is_dir():
            yield entry
            continue
        parts = {TESTS, MUTANTS, RECORD, f"{RECORD}.sig"} | ({CARRIED, PROPOSED} if entry.name in own else set())
        for part in _folder(entry):
            if part.name not in parts and f"{entry.name}/{part.name}" not in listed:
                yield part


def _folder(path: Path) -> list[Path]:
    """Return the sorted, visible entries of a folder; none if it is missing."""
    if not path.is_dir():
        return []
    return sorted(e for e in path.iterdir() if not e.name.startswith("."))
