"""A cache of stack function results. The function is pure, so its arguments are the key; the cache may be deleted."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchctl import __version__
from patchctl.atomic import make_folder
from patchctl.git.objects import EXECUTABLE, GITLINK, REGULAR, SYMLINK, TreeEntry
from patchctl.git.pack import ends_with_digest
from patchctl.source.cache import staging_in
from patchctl.stack.patches import StackPatch

if TYPE_CHECKING:
    from patchctl.stack.build import Built

# Increase this when the stack function gives other commits for the same input, or refuses more.
ENGINE = 2
_ID = re.compile(r"[0-9a-f]{40}")
_PACK = re.compile(r"pack-[0-9a-f]{40}\.pack")


@dataclass(frozen=True)
class EntryChange:
    """A file before and after one patch, as mode and blob id; None where it does not exist."""

    path: str
    before: TreeEntry | None
    after: TreeEntry | None


@dataclass(frozen=True)
class StepResult:
    """An applied patch: the commit it became, its tree, the files it touched."""

    patch: StackPatch
    commit: str
    tree: str
    touched: tuple[EntryChange, ...]


@dataclass(frozen=True)
class StackResult:
    """The result of the stack function, with the pack of the new objects (None if there are none)."""

    base_commit: str
    base_tree: str
    tip_commit: str
    tip_tree: str
    steps: tuple[StepResult, ...]
    pack: Path | None


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
        data = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        out = {id(p) for p in left_out}
        kept = [p for p in patches if id(p) not in out]
        steps = tuple(_step(p, s) for p, s in zip(kept, data["steps"], strict=True))
        pack = folder / _pack_name(data["pack"]) if data["pack"] is not None else None
        if pack is not None and not _whole(pack):
            return None
        base, tip = (_id(data["base_commit"]), _id(data["base_tree"])), (_id(data["tip_commit"]), _id(data["tip_tree"]))
        return StackResult(*base, *tip, steps, pack)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None  # missing, or of another version: compute it again


def put(cache: Path, key: str, built: Built) -> StackResult:
    """Cache a result, by rename; the first run wins. Raises WrongUse."""
    stacks = cache / "stacks"
    with staging_in(cache, stacks, ".new-") as temporary:
        pack = built.objects.write(temporary)
        result = result_of(built, stacks / key / pack.name if pack else None)
        (temporary / "result.json").write_text(json.dumps(_as_json(result)), encoding="utf-8")
        _put_in_place(temporary, stacks / key, pack.name if pack else None)
        return result


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


def result_of(built: Built, pack: Path | None) -> StackResult:
    """Return the result without the objects."""
    steps = tuple(
        StepResult(
            s.patch, s.commit, s.tree, tuple(EntryChange(os.fsdecode(t.path), t.before, t.after) for t in s.touched)
        )
        for s in built.steps
    )
    return StackResult(built.base_commit, built.base_tree, built.tip_commit, built.tip_tree, steps, pack)


def _as_json(result: StackResult) -> dict[str, object]:
    return {
        "base_commit": result.base_commit,
        "base_tree": result.base_tree,
        "tip_commit": result.tip_commit,
        "tip_tree": result.tip_tree,
        "pack": result.pack.name if result.pack else None,
        "steps": [[s.commit, s.tree, [[c.path, c.before, c.after] for c in s.touched]] for s in result.steps],
    }


def _step(patch: StackPatch, data: list[object]) -> StepResult:
    commit, tree, touched = data
    if not isinstance(touched, list):
        raise TypeError("not a list of files")
    changes = tuple(EntryChange(os.fsdecode(os.fsencode(p)), _entry(b), _entry(a)) for p, b, a in touched)
    return StepResult(patch, _id(commit), _id(tree), changes)


def _entry(data: Any) -> TreeEntry | None:
    if data is None:
        return None
    mode, oid = data
    if not isinstance(mode, int) or mode not in (REGULAR, EXECUTABLE, SYMLINK, GITLINK):
        raise ValueError("not a file mode")
    return TreeEntry(mode, _id(oid))


def _pack_name(value: Any) -> str:
    if not isinstance(value, str) or not _PACK.fullmatch(value):
        raise ValueError("not a pack name")
    return value


def _id(value: Any) -> str:
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise ValueError("not an object id")
    return value
