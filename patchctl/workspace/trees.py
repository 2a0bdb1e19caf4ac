"""One tree of a workspace: where its files and git directory are, what was edited in it, and how it is changed.

Images, wheels and mounts have file modes of their own. In an --in-place checkout they stay, except for files whose mode a patch
changes: these get the patch's executable bits, and their own back when the patch goes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from patchctl.errors import BrokenRepository, LocalEdits
from patchctl.git.catfile import ObjectReader
from patchctl.git.objects import EXECUTABLE, GITLINK, REGULAR, Files, TreeEntry
from patchctl.git.worktree import WorkTree
from patchctl.language import message
from patchctl.workspace.state import FOLDER, TreeState, save_json
from patchctl.workspace.tree_files import TreeFiles

STASH_HINT = message("commit them elsewhere, or let `--stash` keep them on a branch of the tree")


@dataclass(frozen=True)
class Move:
    """From one commit of a tree to another; None is no tree at all. `stash` is the tree id of edits that are kept on a
    branch and may be lost here."""

    source: str | None
    target: str | None
    stash: str | None = None


@dataclass(frozen=True)
class Sides:
    """A move as files: as they were before it, as they are after it, and the edits that are kept on a branch.

    With `folders`, of those that the move changes only; then it has the trees of the folders that differ (`Changes`).
    """

    before: Files
    after: Files
    kept: Files
    folders: Mapping[bytes, str | None] | None = None

    @property
    def paths(self) -> set[bytes]:
        """Every path that the move may have to change."""
        return changed_paths(self.before, self.after) | changed_paths(self.before, self.kept)


@dataclass(frozen=True)
class Steps:
    """A pending checkout: the move and the paths still to write; `written` knows the files of a new tree, which are all there."""

    sides: Sides
    todo: tuple[bytes, ...]
    written: TreeFiles | None = None


class Tree:
    """A managed tree or an `--in-place` checkout; with `record`, a package that an installer put there and lists in it."""

    def __init__(self, workspace: Path, name: str, kind: str, folder: str, record: str = "") -> None:
        self.name = name
        self.kind = kind
        self.record = record
        self.folder = workspace / folder if kind == "managed" else Path(folder)
        own = workspace / FOLDER / "into" / f"{name}.git"
        self.git_dir = self.folder / ".git" if kind == "managed" else own
        self.work = WorkTree(self.git_dir, self.folder, file_modes=kind == "managed")

    @classmethod
    def of(cls, workspace: Path, name: str, state: TreeState) -> Tree:
        return cls(workspace, name, state.kind, state.folder, state.record)

    @property
    def kept_record(self) -> Path:
        """The RECORD that the installer wrote."""
        return self.git_dir / "installed-RECORD"

    @property
    def is_link(self) -> bool:
        """Whether a tree of ours was replaced by a link to another folder."""
        return self.kind == "managed" and self.folder.is_symlink()

    @property
    def uninstalled(self) -> bool:
        """Whether the installed package was taken away or replaced by another version, and our patches with it."""
        return bool(self.record) and not (self.folder / self.record).is_file()

    @cached_property
    def _listed(self) -> frozenset[bytes] | None:
        """The files of an installed package: what else lies in site-packages (`tests`, `scripts`) may be another's."""
        if not self.record:
            return None
        records = (self.kept_record, self.folder / self.record)
        return frozenset().union(*(listed(r.read_bytes()) for r in records if r.is_file()))

    def shown(self, paths: Iterable[bytes]) -> list[str]:
        """Paths of the tree as a person can open them."""
        return [os.fsdecode(os.fsencode(self.folder) + b"/" + path) for path in paths]

    def files(self, commit: str) -> Files:
        """Every file of a commit, from the tree's own objects."""
        with ObjectReader(self.git_dir, self.name) as reader:
            return reader.files(commit_tree(reader, commit))

    def staged(self, commit: str) -> list[bytes]:
        """Paths whose index entry differs from `commit`, including intent-to-add entries."""
        with contextlib.suppress(BrokenRepository), ObjectReader(self.git_dir, self.name) as reader:
            return self.work.staged(commit, commit_tree(reader, commit))
        return self.work.staged(commit)

    def differences(self, commit: str) -> list[bytes]:
        """Tracked files that are not as in `commit`, by reading every one: what `verify` believes."""
        wanted = self.files(commit)
        return self.differing(wanted, wanted)

    def brought_back_or_gone(self, base: str, tip: str) -> list[bytes]:
        """Files where `base` has some and `tip` has none: git calls them untracked, and an import finds them. In place also those that the
        stack changes and that are missing, which is no difference of other files there.
        """
        with ObjectReader(self.git_dir, self.name) as reader:
            moved = reader.changes(*(commit_tree(reader, commit) for commit in (base, tip)))
        back = self.differing({}, moved.before.keys() - moved.after.keys())
        if self.kind != "into":
            return back
        files = TreeFiles(self.folder)
        return [*back, *(path for path in moved.after if files.entry(path) is None)]

    def differing(self, wanted: Files, paths: Iterable[bytes]) -> list[bytes]:
        """Those of `paths` whose file is not the wanted one."""
        files, ours = TreeFiles(self.folder), set(paths)
        if self._listed is not None:
            ours &= self._listed
        return sorted(p for p in ours if not self._is(files.entry(p), wanted.get(p)))

    def _is(self, have: TreeEntry | None, wanted: TreeEntry | None) -> bool:
        """Whether a file is what the tree says. A submodule's folder says nothing, and a wheel forgets modes and tests."""
        if wanted is None:  # a folder is no file: one may stand where a file became a folder
            return have is None or have.mode == GITLINK
        if wanted.mode == GITLINK:
            return True
        if self.kind == "into":
            return have is None or have.id == wanted.id
        return have == wanted

    def sides(self, move: Move) -> Sides:
        """The files of a move, from the tree's own objects."""
        with ObjectReader(self.git_dir, self.name) as reader:
            return sides_of(reader, move)

    def obstacles(self, sides: Sides) -> list[bytes]:
        """Paths that the move has to change whose file is none of before, after and kept: a person put it there.

        A move that was killed in the middle of it has no obstacles by that, and can be done again. Writes nothing.
        """
        return self._compare(sides)[1]

    def todo(self, sides: Sides) -> list[bytes]:
        """Paths whose file on disk is not yet that of `after`, obstacles included."""
        todo, obstacles = self._compare(sides)
        return [*todo, *obstacles]

    def edits_during(self, sides: Sides) -> list[bytes]:
        """`obstacles`, and every other file that is not as it has been all along: for a move that was interrupted."""
        rest = sides.after.keys() - sides.paths
        return sorted({*self.obstacles(sides), *self.differing(sides.after, rest)})

    def steps(self, sides: Sides) -> Steps:
        """What is left to do for a move. Raises LocalEdits at an obstacle. Writes nothing."""
        todo, obstacles = self._compare(sides)
        if obstacles:
            raise self.refusal(obstacles)
        return Steps(sides, tuple(todo))

    def links(self, paths: Iterable[bytes]) -> list[bytes]:
        """Those of `paths` that are symbolic links."""
        return [p for p in paths if os.path.islink(os.fsencode(self.folder) + b"/" + p)]

    def holds(self, path: bytes) -> bool:
        """Whether anything exists at this path."""
        return TreeFiles(self.folder).digest(path) is not None

    def refusal(self, edited: Iterable[bytes]) -> LocalEdits:
        """The error to raise for these paths."""
        return LocalEdits(
            message("files of {name} were changed and are in the way", name=self.name),
            self.shown(edited),
            hint=STASH_HINT,
        )

    def _compare(self, sides: Sides) -> tuple[list[bytes], list[bytes]]:
        """The paths whose file on disk is not yet that of `after`: those that may be changed, and the obstacles."""
        files = TreeFiles(self.folder)
        ours = sides.before.keys() | sides.kept.keys()
        todo: list[bytes] = []
        obstacles: set[bytes] = set()
        for path in sorted(sides.paths):
            have, wanted = files.entry(path), sides.after.get(path)
            if self.exactly(have, wanted) or _is_folder_of(path, have, sides):
                continue
            foreign: set[bytes] = set()
            if have is None and wanted is not None:
                foreign = {p for p in files.not_folders(path) if p not in ours}
            known = any(self.exactly(have, side.get(path)) for side in (sides.before, sides.kept))
            if not known and have is not None and have.mode == GITLINK and wanted is not None:
                foreign = {p for p in files.below(path) if p not in ours}  # a folder that becomes a file
                known = True
            if known and not foreign:
                todo.append(path)
            else:
                obstacles |= foreign or {path}
        return todo, sorted(obstacles)

    def exactly(self, have: TreeEntry | None, wanted: TreeEntry | None) -> bool:
        """Whether a file is the wanted one; in place, its mode may be another."""
        if have is None or wanted is None:
            return have is None and wanted is None
        if wanted.mode == GITLINK:
            return have.mode == GITLINK
        return have.id == wanted.id and (have.mode == wanted.mode or self.kind == "into")

    def carry_out(self, steps: Steps) -> TreeFiles:
        """Write and remove what `steps` found; returns what knows the files that were written."""
        if steps.written is not None:
            return steps.written
        files, after = TreeFiles(self.folder), steps.sides.after
        for path in steps.sides.paths:  # a killed run may have been writing one that needs nothing now
            files.clean(path)
        for path in steps.todo:
            files.drop_bytecode(path)
            if path not in after:
                files.remove(path)
        present = [p for p in steps.todo if p in after]
        with ObjectReader(self.git_dir, self.name) as reader:
            for path, data in reader.blobs(after, present):
                self._put(files, path, steps.sides, data)
        for path in present:
            if after[path].mode == GITLINK:
                files.write(path, after[path], b"")
        return files

    def _put(self, files: TreeFiles, path: bytes, sides: Sides, data: bytes) -> None:
        before, after = sides.before.get(path), sides.after[path]
        stays = self.kind == "into" and before is not None and before.mode == after.mode
        files.write(path, after, data, keep_mode=stays)  # images and wheels have modes of their own: they stay

    def keep_on_branch(self, commit: str, paths: Iterable[bytes]) -> tuple[str, str]:
        """Commit `commit` with these paths as they are on disk to a new branch; returns its name and the tree id.

        The parent is HEAD, so that commits which a person made on top of the stack are kept with it. In an `--in-place`
        checkout the branch lies in our own repository: the owner's branches are not ours.
        """
        files = TreeFiles(self.folder)
        real = {next(iter(files.not_folders(p)), p) for p in paths}
        parent = (self.work.head() if self.kind == "managed" else None) or commit
        tree = self.work.snapshot(commit, sorted(real))
        return self.work.new_branch(tree, parent, commit), tree

    def edited_generated(self, wanted: Mapping[str, str], known: Mapping[str, str]) -> list[bytes]:
        """Generated files that are neither what we wrote (`known`: digests) nor what we are about to write (`wanted`)."""
        edited = []
        for path in sorted(wanted.keys() | known.keys()):
            digest = TreeFiles(self.folder).digest(path.encode())
            ours = {known.get(path), _sha256(wanted[path].encode()) if path in wanted else None}
            if digest is not None and digest not in ours:
                edited.append(path.encode())
        return edited

    def texts(self, known: Mapping[str, str]) -> dict[str, str]:
        """The text of each generated file that is as we wrote it (`known`: digests)."""
        files = TreeFiles(self.folder)
        ours = [path for path, digest in known.items() if files.digest(path.encode()) == digest]
        return {path: (self.folder / path).read_bytes().decode("utf-8") for path in ours}

    def place_generated(self, wanted: Mapping[str, bytes]) -> dict[str, str]:
        """Write the files that upstream's build would write; returns their digests, for the state."""
        files = TreeFiles(self.folder)
        for path, data in wanted.items():
            files.clean(path.encode())
            if files.digest(path.encode()) != _sha256(data):
                files.write(path.encode(), TreeEntry(REGULAR, ""), data)
        return {path: _sha256(data) for path, data in wanted.items()}

    def remove_generated(self, known: Mapping[str, str], keep: Iterable[str] = ()) -> None:
        """Take away the generated files that are ours and unchanged."""
        files = TreeFiles(self.folder)
        for path, digest in known.items():
            if path not in keep and files.digest(path.encode()) == digest:
                files.remove(path.encode())


def listed(record: bytes) -> frozenset[bytes]:
    """The paths listed in a RECORD, an installer's list of a package's files with their digests and sizes."""
    return frozenset(os.fsencode(path) for path, _ in record_rows(record))


def record_rows(record: bytes) -> Iterator[tuple[str, bytes]]:
    """The path of each line of a RECORD, and the line with its end. Paths are quoted as in any CSV file."""
    import csv

    for line in record.splitlines(keepends=True):
        text = line.decode("utf-8", "surrogateescape").rstrip("\r\n")
        try:
            row = next(csv.reader([text]), None)
        except csv.Error:  # longer than a field may be, or with a NUL before Python 3.11: it names no file
            row = [text]
        if row:
            yield row[0], line


def _is_folder_of(path: bytes, have: TreeEntry | None, sides: Sides) -> bool:
    """Whether a folder stands where `after` has no file: as good as nothing, be it that of files which replace one, or a
    person's. A submodule is another thing."""
    if have is None or have.mode != GITLINK or path in sides.after:
        return False
    return all(entry is None or entry.mode != GITLINK for entry in (sides.before.get(path), sides.kept.get(path)))


def changed_paths(before: Files, after: Files) -> set[bytes]:
    """Paths that are not the same in both."""
    return {p for p, e in after.items() if before.get(p) != e} | {p for p in before if p not in after}


def commit_tree(reader: ObjectReader, commit: str) -> str:
    """The tree id that a commit names."""
    _, data = reader.read(commit)
    return data[5:45].decode("ascii")


def sides_of(reader: ObjectReader, move: Move, *, whole: bool = True) -> Sides:
    """The files of a move, from the objects that `reader` reads; unless `whole`, only those that it changes, where that is
    all there is to know."""
    if not whole and move.source and move.target and not move.stash:
        found = reader.changes(commit_tree(reader, move.source), commit_tree(reader, move.target))
        return Sides(found.before, found.after, found.before, found.folders)
    before: Files = reader.files(commit_tree(reader, move.source)) if move.source else {}
    after: Files = reader.files(commit_tree(reader, move.target)) if move.target else {}
    return Sides(before, after, reader.files(move.stash) if move.stash else before)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


_BITS = 0o111


def note_modes(tree: Tree, sides: Sides) -> None:
    """Save the mode of each file of an --in-place checkout whose mode is about to change for the first time."""
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
    """Give those files the executable bits of the commit; at their original mode, the bits that were saved."""
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
