"""Reads objects from a repository and verifies each one.

git checks an object's id when it receives it, not when it reads it, so a byte that changes on disk later goes
unnoticed. Here every id is recomputed. Packs are read directly, since a git process costs more than most of what it
would be asked for; whatever is not found, not readable or does not match is left to one `git cat-file --batch`.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

from patchctl.errors import BrokenRepository, GitKilled, PatchctlError, SourceMismatch
from patchctl.git.objects import FOLDER, GITLINK, Files, TreeEntry, object_id, split_tree
from patchctl.git.packread import PackReader
from patchctl.git.run import foreign_environment, git_executable
from patchctl.language import message

# Every tree object that this process has verified. An id never changes its content, and a run walks nearly the same
# trees four times: base, tip, on disk, target.
_TREES: dict[str, bytes] = {}


class Changes(NamedTuple):
    """Entries that differ between two trees, before and after.

    `folders` has the new tree of every folder that differs, by path: b"" is the top, None a removed folder.
    """

    before: Files
    after: Files
    folders: dict[bytes, str | None]


class ObjectReader:
    """A context manager that reads verified objects of the git directory `repo`.

    Damage raises SourceMismatch for a repository of the cache; with `tree`, the name of the tree that owns the
    repository, it raises BrokenRepository. With `afresh`, trees that this process verified in another repository are
    read again.
    """

    def __init__(self, repo: Path, tree: str | None = None, *, afresh: bool = False) -> None:
        self.repo = repo
        self.tree = tree
        self._trees = {} if afresh else _TREES

    def __enter__(self) -> ObjectReader:
        self._packs = PackReader(self.repo)
        self._git: _CatFile | None = None
        return self

    def __exit__(self, *_: object) -> None:
        self._packs.close()
        if self._git is not None:
            self._git.close()

    def read(self, oid: str) -> tuple[str, bytes]:
        """Return type and content of an object.

        Raises SourceMismatch or BrokenRepository if it is missing or damaged; GitKilled.
        """
        return next(iter(self.read_many([oid])))

    def holds(self, oid: str) -> bool:
        """Whether an object exists, by its id. False does not mean that git would not find it."""
        return self._packs.holds(oid)

    def read_many(self, oids: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Like `read`, for many objects in order."""
        wanted = list(oids)
        for number, oid in enumerate(wanted):
            found = self._packs.read(oid)
            if found is None or object_id(*found) != oid:
                yield from self._read_by_git(wanted[number:])
                return
            yield found

    def _read_by_git(self, oids: list[str]) -> Iterator[tuple[str, bytes]]:
        if self._git is None:
            self._git = _CatFile(self.repo, self._wrong)
        for oid, (kind, data) in zip(oids, self._git.read_many(oids), strict=True):
            if object_id(kind, data) != oid:
                raise self._wrong(oid, message("its content does not match its id"))
            yield kind, data

    def _wrong(self, oid: str, why: str) -> PatchctlError:
        if self.tree is not None:
            return BrokenRepository(
                message("the repository of {tree}: object {oid}: {why}", tree=self.tree, oid=oid, why=why),
                where=str(self.repo),
            )
        hint = message("the repository was modified or damaged: `patchctl fetch --refresh` fetches it again")
        return SourceMismatch(message("object {oid}: {why}", oid=oid, why=why), where=str(self.repo), hint=hint)

    def files(self, tree: str) -> Files:
        """Return every file of a tree, flat. Gitlinks are entries; their commits are not read."""
        found: Files = {}
        level = [(b"", tree)]
        while level:
            deeper = []
            self._learn_trees({oid for _, oid in level})
            for prefix, oid in level:
                for name, entry in self._entries(oid):
                    if entry.mode == FOLDER:
                        deeper.append((prefix + name + b"/", entry.id))
                    else:
                        found[prefix + name] = entry
            level = deeper
        return found

    def those_in(self, tree: str, paths: Iterable[bytes]) -> set[bytes]:
        """Return those of `paths` that are files of the tree. Reads only the folders on their way."""
        found: set[bytes] = set()
        waiting = [(tree, path, path) for path in paths]
        while waiting:
            self._learn_trees({oid for oid, _, _ in waiting})
            inside = {oid: dict(self._entries(oid)) for oid, _, _ in waiting}
            deeper = []
            for oid, rest, path in waiting:
                name, slash, below = rest.partition(b"/")
                entry = inside[oid].get(name)
                if entry is not None and slash and entry.mode == FOLDER:
                    deeper.append((entry.id, below, path))
                elif entry is not None and not slash and entry.mode != FOLDER:
                    found.add(path)
            waiting = deeper
        return found

    def changes(self, before: str | None, after: str) -> Changes:
        """Compare two trees without reading folders that are equal. None is the empty tree."""
        found = Changes({}, {}, {})
        level: list[tuple[bytes, str | None, str | None]] = [(b"", before, after)] if before != after else []
        while level:
            self._learn_trees({oid for _, *pair in level for oid in pair if oid is not None})
            deeper = []
            for prefix, one, other in level:
                found.folders[prefix[:-1]] = other
                sides = [set(self._split(oid)) if oid else set() for oid in (one, other)]
                inner: dict[bytes, list[str | None]] = {}
                for side, rest in ((0, sides[0] - sides[1]), (1, sides[1] - sides[0])):
                    for _, mode, name, raw in rest:
                        entry = TreeEntry(int(mode, 8), raw.hex())
                        if entry.mode == FOLDER:
                            inner.setdefault(prefix + name + b"/", [None, None])[side] = entry.id
                        else:
                            (found.after if side else found.before)[prefix + name] = entry
                deeper += [(path, pair[0], pair[1]) for path, pair in inner.items()]
            level = deeper
        return found

    def _learn_trees(self, oids: set[str]) -> None:
        unknown = sorted(oids - self._trees.keys())
        for oid, (kind, data) in zip(unknown, self.read_many(unknown), strict=True):
            if kind != "tree":
                raise self._wrong(oid, f"expected a tree, found a {kind}")
            self._trees[oid] = _TREES[oid] = data

    def tree_data(self, oid: str) -> bytes:
        """Return the content of a tree object."""
        self._learn_trees({oid})
        return self._trees[oid]

    def _entries(self, oid: str) -> list[tuple[bytes, TreeEntry]]:
        return [(name, TreeEntry(int(mode, 8), raw.hex())) for _, mode, name, raw in self._split(oid)]

    def _split(self, oid: str) -> list[tuple[bytes, bytes, bytes, bytes]]:
        try:
            return split_tree(self._trees[oid])
        except ValueError as error:
            raise self._wrong(oid, str(error)) from None

    def blobs(self, files: Files, paths: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """Yield (path, content) for these paths of a tree, in order. Skips gitlinks."""
        wanted = [p for p in paths if files[p].mode != GITLINK]
        for path, (_, data) in zip(wanted, self.read_many([files[p].id for p in wanted]), strict=True):
            yield path, data


class _CatFile:
    """A `git cat-file --batch` process. `wrong` builds the error for an object id and a reason."""

    def __init__(self, repo: Path, wrong: Callable[[str, str], PatchctlError]) -> None:
        self._wrong = wrong
        self._process = subprocess.Popen(
            [git_executable(), f"--git-dir={repo}", "cat-file", "--batch"],
            env=foreign_environment(repo, (("safe.directory", str(repo)),)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._in: IO[bytes] = self._process.stdin
        self._out: IO[bytes] = self._process.stdout

    def close(self) -> None:
        # Kill it before closing its pipe: closing waits for a thread that may still be writing, and that thread for
        # the process, if the reader stopped at an error. The process only reads, so nothing is lost.
        self._process.kill()
        try:
            self._in.close()
        except BrokenPipeError:
            pass
        self._out.close()
        if self._process.stderr is not None:
            self._process.stderr.close()
        self._process.wait()

    def read_many(self, oids: list[str]) -> Iterator[tuple[str, bytes]]:
        """Read many objects. Requests are written by a thread, since a full pipe would block both sides."""
        asking = threading.Thread(target=self._ask, args=(oids,), daemon=True)
        asking.start()
        for oid in oids:
            yield self._answer(oid)
        asking.join()

    def _ask(self, oids: list[str]) -> None:
        try:
            self._in.write("".join(f"{oid}\n" for oid in oids).encode())
            self._in.flush()
        except (BrokenPipeError, ValueError):
            pass  # the reading side notices that the process has ended and reports it

    def _answer(self, oid: str) -> tuple[str, bytes]:
        head = self._out.readline().split()
        if not head:
            raise self._ended(oid)
        if len(head) != 3 or head[0].decode("ascii", "replace") != oid:
            raise self._wrong(oid, message("missing"))
        kind, size = head[1].decode("ascii"), int(head[2])
        data = self._out.read(size)
        if len(data) != size or self._out.read(1) != b"\n":
            raise self._ended(oid)
        return kind, data

    def _ended(self, oid: str) -> PatchctlError:
        """Return why git gave no answer: it was killed, or it cannot read the object or the repository."""
        status = self._process.wait()
        if status < 0:
            return GitKilled("cat-file", -status)
        said = self._process.stderr.read().decode("utf-8", "replace").strip() if self._process.stderr else ""
        return self._wrong(oid, f"git cannot read it: {said.splitlines()[-1] if said else f'status {status}'}")
