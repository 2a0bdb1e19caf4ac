"""Mutations: one replacement in one file of a patched tree, after which a test of the feature must be red."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from patchctl.errors import BadManifest, Where
from patchctl.scratch import scratch

_KEYS = {"file", "replace", "with", "why"}


@dataclass(frozen=True)
class Mutant:
    """One replacement in one file of a patched tree. `source` is its file below the root."""

    name: str
    source: str
    upstream: str
    file: str
    replace: str
    replacement: str


class MutationError(Exception):
    """The mutation cannot be made: it does not name exactly one place of the patched file."""


def load_mutants(root: Path, upstream: str, files: Iterable[str]) -> list[Mutant]:
    """Raises BadManifest for a file whose keys are not those of a mutation."""
    return [_load(root / file, file, upstream) for file in files]


def _load(path: Path, source: str, upstream: str) -> Mutant:
    import yaml

    try:
        text = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadManifest(f"the mutation cannot be read: {error}", where=Where(source)) from error
    if not isinstance(text, dict) or set(text) != _KEYS:
        raise BadManifest(f"the keys must be {', '.join(sorted(_KEYS))}", where=Where(source))
    file, old, new = (str(text[key]) for key in ("file", "replace", "with"))
    return Mutant(path.stem, source, upstream, file, old, new)


@contextmanager
def mutated(patched: Path, mutant: Mutant) -> Iterator[Path]:
    """A folder of trees like `patched` but for the mutation; nothing in `patched` is touched. Raises MutationError."""
    source = (patched / mutant.upstream).resolve()
    if not source.is_dir():
        # The tests say why they are skipped without it.
        yield patched
        return
    original = source / mutant.file
    text = original.read_text(encoding="utf-8") if original.is_file() else ""
    if (count := text.count(mutant.replace)) != 1:
        raise MutationError(f"mutant {mutant.name}: the text to replace occurs {count} times in {mutant.file}")
    with scratch("patchctl-mutant-", _beside(patched)) as folder:
        _link_tree(source, folder / mutant.upstream)
        _replace(folder / mutant.upstream / mutant.file, text.replace(mutant.replace, mutant.replacement))
        for other in patched.iterdir():
            if other.is_dir() and other.name not in (mutant.upstream, ".patchctl"):
                (folder / other.name).symlink_to(other.resolve())
        yield folder


def _beside(folder: Path) -> Path | None:
    """Where hard links to the folder's files can be made: next to it, when that can be written."""
    parent = folder.resolve().parent
    return parent if os.access(parent, os.W_OK) else None


def _link_tree(source: Path, target: Path) -> None:
    shutil.copytree(
        source, target, symlinks=True, copy_function=_link, ignore=shutil.ignore_patterns(".git", "__pycache__")
    )


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target)


def _replace(path: Path, text: str) -> None:
    """Writes a new file in the place of a hard link, whose other names keep the old content."""
    path.unlink()
    path.write_text(text, encoding="utf-8")
