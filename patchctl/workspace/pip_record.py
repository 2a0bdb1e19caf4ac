"""Keeps RECORD and the byte code of a package that is patched where pip or uv installed it in step with its files.

`pip uninstall` and audits of an image read RECORD. The installer's own is kept in our repository of the package and restored
byte for byte, as is the byte code that it lists (pip compiles what it installs).
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from patchctl.atomic import replace_file
from patchctl.git.catfile import ObjectReader
from patchctl.git.objects import REGULAR, Files, TreeEntry
from patchctl.workspace.tree_files import TreeFiles, bytecode_of
from patchctl.workspace.trees import Tree, changed_paths, listed, record_rows


def keep_record(tree: Tree) -> None:
    """Save the installer's RECORD before the first change."""
    replace_file(tree.kept_record, (tree.folder / tree.record).read_bytes())


def write_record(tree: Tree, base: str, commit: str, generated: Iterable[str]) -> None:
    """Write RECORD for the package's files at `commit`; at its base, exactly as the installer wrote it."""
    data = expected_record(tree, base, commit, generated)
    path = os.fsencode(tree.record)
    files = TreeFiles(tree.folder)
    files.clean(path)
    if files.digest(path) != hashlib.sha256(data).hexdigest():
        files.write(path, TreeEntry(REGULAR, ""), data, keep_mode=True)


def expected_record(tree: Tree, base: str, commit: str, generated: Iterable[str]) -> bytes:
    """The content of RECORD at `commit`, with the generated files that are ours."""
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
    """Whether RECORD is exactly what we write for this commit."""
    return (tree.folder / tree.record).read_bytes() == expected_record(tree, base, commit, generated)


def save_bytecode(tree: Tree, base: Files, before: Files, todo: Iterable[bytes]) -> None:
    """Save the installer's byte code of modules that are about to change for the first time."""
    own = [p for p in todo if p in base and before.get(p) == base[p]]
    for path in _bytecode(tree.kept_record.read_bytes(), own):
        source, kept = tree.folder / os.fsdecode(path), _kept_bytecode(tree, path)
        if source.is_file() and not source.is_symlink() and not kept.exists():
            replace_file(kept, source.read_bytes(), source.stat().st_mode & 0o777)


def restore_bytecode(tree: Tree, base: Files, after: Files) -> None:
    """Restore the installer's byte code, which RECORD lists, for modules that are as installed again."""
    files = TreeFiles(tree.folder)
    own = {p for p in base if after.get(p) == base[p]}
    for path in _bytecode(tree.kept_record.read_bytes(), own):
        kept = _kept_bytecode(tree, path)
        if kept.is_file():
            files.write(path, TreeEntry(REGULAR, ""), kept.read_bytes())
            (tree.folder / os.fsdecode(path)).chmod(kept.stat().st_mode & 0o777)


def _kept_bytecode(tree: Tree, path: bytes) -> Path:
    return tree.git_dir / "installed-bytecode" / os.fsdecode(path)


def rewritten(record: bytes, changes: Mapping[bytes, bytes | None]) -> bytes:
    """A RECORD in which the files in `changes` have these contents, or are gone (None). Every other line stays as it is.

    Lines of the changed modules' byte code go: that code is deleted, and what Python compiles later is in no RECORD.
    """
    if not changes:
        return record
    stale = set(_bytecode(record, changes))
    lines, seen = [], set()
    end = b"\r\n" if record.partition(b"\n")[0].endswith(b"\r") else b"\n"
    for path, line in record_rows(record):
        name = os.fsencode(path)
        seen.add(name)
        content = changes.get(name)
        if content is not None:
            lines.append(_line(path, content) + end)
        elif name not in changes and name not in stale:
            lines.append(line)
    if lines and not lines[-1].endswith(b"\n"):
        lines[-1] += end
    new = sorted((p, c) for p, c in changes.items() if c is not None and p not in seen)
    return b"".join([*lines, *(_line(os.fsdecode(p), c) + end for p, c in new)])


def _bytecode(record: bytes, modules: Iterable[bytes]) -> Iterator[bytes]:
    """The files listed in a RECORD that Python compiled from these modules."""
    wanted = {os.path.split(p[:-2]) for p in modules if p.endswith(b".py")}  # folder, and name with the dot
    for path in listed(record):
        folder, name = os.path.split(path)
        above, cache = os.path.split(folder)
        stem = name.partition(b".")[0] + b"."
        if cache == b"__pycache__" and (above, stem) in wanted and bytecode_of(stem, name):
            yield path


def _line(path: str, content: bytes) -> bytes:
    import csv

    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode("ascii")
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow([path, f"sha256={digest}", len(content)])
    return out.getvalue().encode("utf-8", "surrogateescape")
