"""A package that is patched where pip or uv installed it: its RECORD and byte code are kept true.

`pip uninstall` and whoever audits an image read RECORD. The installer's own is kept beside our repository of the package
and comes back byte for byte; so does the byte code that it lists (pip compiles what it installs).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from patchctl.atomic import replace_file
from patchctl.git.catfile import ObjectReader
from patchctl.git.objects import REGULAR, Entry, Files
from patchctl.workspace.files import TreeFiles
from patchctl.workspace.record import bytecode, rewritten
from patchctl.workspace.trees import Tree, changed_paths


def keep_record(tree: Tree) -> None:
    """Keep the installer's RECORD, before the first change."""
    replace_file(tree.kept_record, (tree.folder / tree.record).read_bytes())


def write_record(tree: Tree, base: str, commit: str, generated: Iterable[str]) -> None:
    """Make RECORD say what the package holds at `commit`; at its base, as the installer wrote it."""
    data = expected_record(tree, base, commit, generated)
    path = os.fsencode(tree.record)
    files = TreeFiles(tree.folder)
    files.clean(path)
    if files.digest(path) != hashlib.sha256(data).hexdigest():
        files.rewrite(path, Entry(REGULAR, ""), data)


def expected_record(tree: Tree, base: str, commit: str, generated: Iterable[str]) -> bytes:
    """What RECORD has to be at `commit`, with the generated files that are ours."""
    changes: dict[bytes, bytes | None] = {}
    if commit != base:
        after = tree.files(commit)
        changed = changed_paths(tree.files(base), after)
        with ObjectReader(tree.git_dir, tree.name) as reader:
            changes.update(reader.blobs(after, sorted(p for p in changed if p in after)))
        changes.update(dict.fromkeys(p for p in changed if p not in after))
        for path in generated:
            if (file := tree.folder / path).is_file():
                changes[os.fsencode(path)] = file.read_bytes()
    return rewritten(tree.kept_record.read_bytes(), changes)


def record_is_ours(tree: Tree, base: str, commit: str, generated: Iterable[str]) -> bool:
    """Whether RECORD is as we write it for this commit."""
    return (tree.folder / tree.record).read_bytes() == expected_record(tree, base, commit, generated)


def set_bytecode_aside(tree: Tree, base: Files, before: Files, todo: Iterable[bytes]) -> None:
    """Keep the byte code that the installer made of those modules that are about to change for the first time."""
    own = [p for p in todo if p in base and before.get(p) == base[p]]
    for path in bytecode(tree.kept_record.read_bytes(), own):
        source, kept = tree.folder / os.fsdecode(path), _kept_bytecode(tree, path)
        if source.is_file() and not source.is_symlink() and not kept.exists():
            replace_file(kept, source.read_bytes(), source.stat().st_mode & 0o777)


def bring_bytecode_back(tree: Tree, base: Files, after: Files) -> None:
    """Put the installer's byte code back for modules that are its own again: RECORD lists it."""
    files = TreeFiles(tree.folder)
    own = {p for p in base if after.get(p) == base[p]}
    for path in bytecode(tree.kept_record.read_bytes(), own):
        kept = _kept_bytecode(tree, path)
        if kept.is_file():
            files.write(path, Entry(REGULAR, ""), kept.read_bytes())
            (tree.folder / os.fsdecode(path)).chmod(kept.stat().st_mode & 0o777)


def _kept_bytecode(tree: Tree, path: bytes) -> Path:
    return tree.git_dir / "installed-bytecode" / os.fsdecode(path)
