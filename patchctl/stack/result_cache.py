"""A cache of stack function results. The function is pure, so its arguments are the key; the cache may be deleted."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from patchctl import __version__
from patchctl.atomic import make_folder
from patchctl.git.objects import TreeBuilder, TreeEntry
from patchctl.git.pack import PackWriter, ends_with_digest
from patchctl.manifest.typeinfo import parse
from patchctl.manifest.types import ObjectId, Pattern
from patchctl.source.cache import staging_in
from patchctl.stack.patches import StackPatch

# Increase this when the stack function gives other commits for the same input, or refuses more.
ENGINE = 2


@dataclass(frozen=True)
class Touched:
    """A file before and after one patch; None where it does not exist."""

    path: bytes
    before: TreeEntry | None
    after: TreeEntry | None


@dataclass(frozen=True)
class StepResult:
    """An applied patch: the commit it became, its tree, the files it touched."""

    patch: StackPatch
    commit: str
    tree: str
    touched: tuple[Touched, ...]


@dataclass(frozen=True)
class StackResult:
    """The result of the stack function, with the pack of the new objects (None if there are none)."""

    base_commit: str
    base_tree: str
    tip_commit: str
    tip_tree: str
    steps: Sequence[StepResult]
    pack: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Built(StackResult):
    """The result of the stack function. `objects` has every object that the base lacks; `tree` is the tip's."""

    tree: TreeBuilder
    objects: PackWriter


_Entry = tuple[Literal[0o100644, 0o100755, 0o120000, 0o160000], ObjectId]


@dataclass(frozen=True)
class _Kept:
    """The file of a result: of each step its commit, its tree and what it touched."""

    base_commit: ObjectId
    base_tree: ObjectId
    tip_commit: ObjectId
    tip_tree: ObjectId
    pack: Annotated[str, Pattern(r"pack-[0-9a-f]{40}\.pack", "a pack's name")] | None
    steps: tuple[tuple[ObjectId, ObjectId, tuple[tuple[str, _Entry | None, _Entry | None], ...]], ...]


def cache_key(base_commit: str, patches: Sequence[StackPatch], left_out: Sequence[StackPatch]) -> str:
    """Return the cache key: engine version, base, every patch's digest, and which patches are left out."""
    out = {id(p) for p in left_out}
    parts = [[p.digest, id(p) in out] for p in patches]
    return hashlib.sha256(json.dumps([ENGINE, base_commit, parts]).encode()).hexdigest()


def parsed_before(cache: Path, patches: Sequence[StackPatch]) -> bool:
    """Whether exactly these patches were parsed and accepted before by this engine."""
    return os.path.isfile(_note(cache, patches))


def note_parsed(cache: Path, patches: Sequence[StackPatch]) -> None:
    """Record that these patches were parsed and accepted. Does nothing if the cache cannot be written."""
    note = _note(cache, patches)
    with contextlib.suppress(OSError):
        make_folder(note.parent)
        note.touch()


def _note(cache: Path, patches: Sequence[StackPatch]) -> Path:
    parts = [ENGINE, __version__, [p.digest for p in patches]]
    return cache / "stacks" / "parsed" / hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def get(cache: Path, key: str, patches: Sequence[StackPatch], left_out: Sequence[StackPatch]) -> StackResult | None:
    """Return a cached result, or None. A result whose pack was modified is ignored."""
    folder = cache / "stacks" / key
    try:
        kept = parse(_Kept, (folder / "result.json").read_bytes())
        out = {id(p) for p in left_out}
        applied = [p for p in patches if id(p) not in out]
        steps = [
            StepResult(p, c, t, tuple(map(_touched, rows))) for p, (c, t, rows) in zip(applied, kept.steps, strict=True)
        ]
        pack = folder / kept.pack if kept.pack is not None else None
    except (OSError, ValueError):
        return None  # missing, or of another version: compute it again
    if pack is not None and not _whole(pack):
        return None
    return StackResult(kept.base_commit, kept.base_tree, kept.tip_commit, kept.tip_tree, steps, pack)


def _touched(row: tuple[str, _Entry | None, _Entry | None]) -> Touched:
    path, before, after = row
    return Touched(os.fsencode(path), before and TreeEntry(*before), after and TreeEntry(*after))


def put(cache: Path, key: str, built: Built) -> StackResult:
    """Cache a result, by rename; the first run wins. Raises WrongUse."""
    stacks = cache / "stacks"
    with staging_in(cache, stacks, ".new-") as temporary:
        pack = built.objects.write(temporary)
        named = pack.name if pack else None
        at = built.base_commit, built.base_tree, built.tip_commit, built.tip_tree
        rows: list[Any] = [
            (s.commit, s.tree, [(os.fsdecode(t.path), t.before, t.after) for t in s.touched]) for s in built.steps
        ]
        (temporary / "result.json").write_text(json.dumps(asdict(_Kept(*at, named, tuple(rows)))), encoding="utf-8")
        _put_in_place(temporary, stacks / key, named)
        return StackResult(*at, built.steps, stacks / key / named if named else None)


def drop(result: StackResult) -> None:
    """Drop a result whose objects proved damaged, so that it is computed again."""
    if result.pack is not None:
        shutil.rmtree(result.pack.parent, ignore_errors=True)


def _put_in_place(made: Path, place: Path, pack: str | None) -> None:
    """Rename `made` into place, unless another run has put a usable result there."""
    try:
        os.rename(made, place)
    except OSError:
        if not (place / "result.json").is_file() or (pack is not None and not _whole(place / pack)):
            shutil.rmtree(place, ignore_errors=True)
            os.rename(made, place)


def _whole(pack: Path) -> bool:
    """Whether a pack and its index exist unmodified."""
    try:
        return all(ends_with_digest(file) for file in (pack, pack.with_suffix(".idx")))
    except OSError:
        return False
