"""One tree of a workspace: where its files and its git directory are, what was edited in it, and how it is changed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from patchctl.errors import LocalEdits
from patchctl.git.catfile import ObjectReader
from patchctl.git.objects import GITLINK, REGULAR, Entry, Files
from patchctl.git.worktree import WorkTree
from patchctl.workspace.files import TreeFiles
from patchctl.workspace.state import FOLDER, TreeState


@dataclass(frozen=True)
class Move:
    """From one commit of a tree to another. `stash` is the tree id of edits that are kept on a branch and may be lost here."""

    source: str | None
    target: str
    stash: str | None = None


class Tree:
    """A managed tree or an `--into` checkout."""

    def __init__(self, workspace: Path, name: str, kind: str, folder: str) -> None:
        self.name = name
        self.kind = kind
        self.folder = workspace / folder if kind == "managed" else Path(folder)
        own = workspace / FOLDER / "into" / f"{name}.git"
        self.git_dir = self.folder / ".git" if kind == "managed" else own
        self.work = WorkTree(self.git_dir, self.folder)

    @classmethod
    def of(cls, workspace: Path, name: str, state: TreeState) -> Tree:
        return cls(workspace, name, state.kind, state.folder)

    def files(self, commit: str) -> Files:
        """Every file of a commit, from the tree's own objects."""
        with ObjectReader(self.git_dir) as reader:
            return reader.files(commit_tree(reader, commit))

    def edits(self, commit: str) -> list[bytes]:
        """Tracked files that are not as in `commit`, by git's stat cache and then by content."""
        candidates = self.work.candidates(commit)
        return self._changed(self.files(commit), candidates) if candidates else []

    def differences(self, commit: str) -> list[bytes]:
        """The same by reading every file: what `verify` believes."""
        wanted = self.files(commit)
        return self._changed(wanted, wanted)

    def _changed(self, wanted: Files, paths: Iterable[bytes]) -> list[bytes]:
        files = TreeFiles(self.folder)
        return sorted(p for p in set(paths) if not self._is(files.entry(p), wanted.get(p)))

    def _is(self, have: Entry | None, wanted: Entry | None) -> bool:
        """Whether a file is what the tree says. A submodule's folder says nothing, and a wheel forgets modes and tests."""
        if wanted is None or wanted.mode == GITLINK:
            return wanted is not None or have is None
        if self.kind == "into":
            return have is None or have.id == wanted.id
        return have == wanted

    def check(self, move: Move) -> None:
        """Raise LocalEdits when a file that `move` would change is neither as in its source nor as in its target, so that
        a move can be done again after a run that was killed in the middle of it. Writes nothing."""
        with ObjectReader(self.git_dir) as reader:
            self._plan(reader, move)

    def move(self, move: Move) -> None:
        """Make the files those of `move.target`. What `check` refuses is refused here too, before the first write."""
        with ObjectReader(self.git_dir) as reader:
            after, todo = self._plan(reader, move)
            self._carry_out(reader, after, todo)

    def _plan(self, reader: ObjectReader, move: Move) -> tuple[Files, list[bytes]]:
        """The target's files, and the paths whose file on disk is not yet the target's."""
        before: Files = reader.files(commit_tree(reader, move.source)) if move.source else {}
        after = reader.files(commit_tree(reader, move.target))
        stash = reader.files(move.stash) if move.stash else before
        files = TreeFiles(self.folder)
        todo, edited = [], []
        for path in sorted(changed_paths(before, after) | changed_paths(before, stash)):
            have = files.entry(path)
            if self._exactly(have, after.get(path)):
                continue
            if self._exactly(have, before.get(path)) or self._exactly(have, stash.get(path)):
                todo.append(path)
            else:
                edited.append(os.fsdecode(self.folder / os.fsdecode(path)))
        if edited:
            raise LocalEdits(f"files of {self.name} were changed and are in the way", edited, hint=STASH_HINT)
        return after, todo

    def holds(self, path: bytes) -> bool:
        """Whether there is anything at this path."""
        return TreeFiles(self.folder).entry(path) is not None

    def _exactly(self, have: Entry | None, wanted: Entry | None) -> bool:
        if have is None or wanted is None:
            return have is None and wanted is None
        if wanted.mode == GITLINK:
            return have.mode == GITLINK
        return have.id == wanted.id and (have.mode == wanted.mode or self.kind == "into")

    def _carry_out(self, reader: ObjectReader, after: Files, todo: list[bytes]) -> None:
        files = TreeFiles(self.folder)
        for path in todo:
            files.clean(path)
            if path not in after:
                files.remove(path)
        present = [p for p in todo if p in after]
        for path, data in reader.blobs(after, present):
            files.write(path, after[path], data)
        for path in present:
            if after[path].mode == GITLINK:
                files.write(path, after[path], b"")

    def keep_on_branch(self, tip: str) -> tuple[str, str]:
        """Commit the files as they are to a new branch of the tree; returns its name and the tree id.

        The commit's parent is HEAD, so that commits which a person made on top of the stack are kept with it. In an
        `--into` checkout the branch lies in our own repository: the owner's branches are not ours.
        """
        parent = (self.work.head() if self.kind == "managed" else None) or tip
        everything = "--all" if self.kind == "managed" else "--update"
        tree = self.work.snapshot(everything)
        branch = self.work.new_branch("patchctl-stash", tree, parent)
        return branch, tree

    def place_generated(self, wanted: Mapping[str, bytes], known: Mapping[str, str]) -> dict[str, str]:
        """Write the files that upstream's build would write; returns their digests, for the state.

        One that is there already and is not ours (`known`) belongs to the owner of the tree and stays as it is.
        """
        files = TreeFiles(self.folder)
        placed: dict[str, str] = {}
        for path, data in wanted.items():
            have = self.folder / path
            if have.exists() and path not in known:
                if have.read_bytes() != data:
                    continue
                if self.kind == "into":
                    continue
            files.write(path.encode(), Entry(REGULAR, ""), data)
            placed[path] = hashlib.sha256(data).hexdigest()
        return placed

    def remove_generated(self, known: Mapping[str, str], keep: Iterable[str] = ()) -> None:
        """Take away the generated files that are ours and unchanged."""
        files = TreeFiles(self.folder)
        for path, digest in known.items():
            have = self.folder / path
            if path not in keep and have.is_file() and hashlib.sha256(have.read_bytes()).hexdigest() == digest:
                files.remove(path.encode())


STASH_HINT = "commit them elsewhere, or let `--stash` keep them on a branch of the tree"


def changed_paths(before: Files, after: Files) -> set[bytes]:
    """Paths that are not the same in both."""
    return {p for p, e in after.items() if before.get(p) != e} | {p for p in before if p not in after}


def commit_tree(reader: ObjectReader, commit: str) -> str:
    """The tree id that a commit names."""
    _, data = reader.read(commit)
    return data[5:45].decode("ascii")
