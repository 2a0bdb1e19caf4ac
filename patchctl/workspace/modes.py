"""Executable bits of an --into checkout. Images, wheels and mounts have modes of their own, which stay as they are, but for
files whose mode a patch changes: these get it, and get their own back when the patch goes."""

from __future__ import annotations

import json
import os
from pathlib import Path

from patchctl.git.objects import EXECUTABLE, REGULAR
from patchctl.workspace.state import save_json
from patchctl.workspace.trees import Sides, Tree

_BITS = 0o111


def note_modes(tree: Tree, sides: Sides) -> None:
    """Write down the mode on disk of each file whose mode is about to change, before the first change of it."""
    if tree.kind != "into":
        return
    before = _noted(tree)
    known = dict(before)
    for path in _changing(sides):
        file = _place(tree, path)
        if os.fsdecode(path) not in known and file.is_file() and not file.is_symlink():
            known[os.fsdecode(path)] = (sides.before[path].mode, file.stat().st_mode & 0o777)
    if known != before:
        save_json(_file(tree), known)


def set_modes(tree: Tree, sides: Sides) -> None:
    """Give those files the bits of the commit that is there now; its own to one that is back at what was written down."""
    if tree.kind != "into":
        return
    known = _noted(tree)
    for path in _changing(sides):
        file, after = _place(tree, path), sides.after[path].mode
        if not file.is_file() or file.is_symlink():
            continue
        have = file.stat().st_mode & 0o777
        before, own = known.get(os.fsdecode(path), (0, 0))
        bits = (have & 0o444) >> 2 if after == EXECUTABLE else 0
        wanted = (have & ~_BITS) | (own & _BITS if after == before else bits)
        if wanted != have:
            file.chmod(wanted)


def _changing(sides: Sides) -> list[bytes]:
    regular = (REGULAR, EXECUTABLE)
    both = sides.before.keys() & sides.after.keys()
    pairs = ((p, sides.before[p].mode, sides.after[p].mode) for p in sorted(both))
    return [p for p, before, after in pairs if before != after and before in regular and after in regular]


def _noted(tree: Tree) -> dict[str, tuple[int, int]]:
    try:
        data = json.loads(_file(tree).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return {path: (before, own) for path, (before, own) in data.items()}


def _file(tree: Tree) -> Path:
    return tree.git_dir / "modes.json"


def _place(tree: Tree, path: bytes) -> Path:
    return tree.folder / os.fsdecode(path)
