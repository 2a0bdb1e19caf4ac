"""One tree of a workspace that is being repaired: what is wrong with it, and how it gets to its base with nothing of a
person's lost."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from patchctl.atomic import replace_file
from patchctl.doc import Doc
from patchctl.errors import BrokenRepository, PatchctlError, SourceMismatch
from patchctl.git.catfile import ObjectReader
from patchctl.git.objects import GITLINK, Entry, Files
from patchctl.git.packfiles import bring_pack
from patchctl.git.run import GitFailed, run_git
from patchctl.git.underway import UNDER_WAY
from patchctl.git.worktree import WorkTree, create_git_dir, find_git_dir, import_base, object_store
from patchctl.workspace.aside import Aside
from patchctl.workspace.files import TreeFiles
from patchctl.workspace.installed import bring_bytecode_back, write_record
from patchctl.workspace.journal import new_git_dir
from patchctl.workspace.modes import set_modes
from patchctl.workspace.proof import prove, said
from patchctl.workspace.subjects import Subject, note_tree
from patchctl.workspace.trees import Move, Sides, Steps, Tree, changed_paths, commit_tree

_LOCKED = ("index", "HEAD", "config", "packed-refs", "shallow")


@dataclass(frozen=True)
class Seen:
    """One thing that is not as it should be."""

    kind: Annotated[str, Doc("interrupted, journal, state, repair, repository-missing, repository, objects or lock")]
    place: Annotated[str, Doc("the file or folder")]
    message: Annotated[str, Doc("a sentence")]


def look(workspace: Path, subject: Subject) -> Iterator[Seen]:
    """What is wrong with a tree's repository. Writes nothing."""
    tree = subject.tree(workspace)
    if subject.kind == "into" and (not tree.folder.is_dir() or tree.uninstalled):
        return  # its owner took it away: the next revert forgets it
    if not tree.git_dir.is_dir():
        yield Seen("repository-missing", str(tree.git_dir), f"the repository of {tree.name} is not there")
        return
    for lock in locks(tree):
        yield Seen("lock", str(lock), f"a git in {tree.name} has not ended, or was killed")
    trouble = _trouble(tree)
    if trouble:
        yield Seen("repository", str(tree.git_dir), f"git cannot use the repository of {tree.name}: {trouble}")
    try:
        for commit in dict.fromkeys((subject.base, *subject.others)):
            prove(tree, Move(None, commit), subject.base, whole=True)
    except BrokenRepository as damage:
        yield Seen("objects", str(tree.git_dir), damage.what)


def locks(tree: Tree) -> list[Path]:
    """Locks of git in a tree's repository that a run of ours would meet."""
    return [lock for name in _LOCKED if os.path.lexists(lock := tree.git_dir / f"{name}.lock")]


def _trouble(tree: Tree, *, index: bool = True) -> str | None:
    """Why git cannot use the repository of a tree; without `index`, one that has none yet is no trouble."""
    try:
        if not (tree.git_dir / "HEAD").is_file():
            return "HEAD is missing"
        for question in (("rev-parse", "--git-dir"), ("for-each-ref",), ("ls-files", "--stage")):
            tree.work.git(*question)
        if tree.work.head() is None and tree.kind == "managed":
            return "HEAD names no commit"
        if index and not (tree.git_dir / "index").is_file():
            return "the index is missing"
    except GitFailed as failure:
        return said(failure)
    return None


def _on_branch(tree: Tree) -> bool:
    return (tree.git_dir / "HEAD").read_bytes().startswith(b"ref: ")


# What git needs beside objects and references, in the order in which it reads them, and what to put in the place of a broken one.
_SMALL_FILES = {
    "config": "[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tautocrlf = false\n",
    "HEAD": "{base}\n",
    "packed-refs": "",
    "index": "",
}


def _is_broken(tree: Tree, name: str) -> bool:
    file = tree.git_dir / name
    question = {"packed-refs": ("for-each-ref",), "index": ("ls-files", "--stage")}
    if not file.is_file():
        return name not in question or os.path.lexists(file)
    if name == "HEAD":
        return not re.fullmatch(r"ref: refs/\S+\n?|[0-9a-f]{40}\n?", file.read_text(encoding="utf-8", errors="replace"))
    try:
        if name == "config":
            run_git(["config", "--file", str(file), "--list"])
        else:
            tree.work.git(*question[name])
    except GitFailed:
        return True
    return False


class Mending:
    """A tree on the way to its base. `outcome`: base, aside (moved away whole), left (as its owner has it), gone."""

    def __init__(self, workspace: Path, subject: Subject, aside: Aside, cache: Path) -> None:
        self.workspace = workspace
        self.subject = subject
        self.aside = aside
        self.cache = cache
        self.tree = subject.tree(workspace)
        self.generated: dict[str, str] = {}

    def run(self) -> str:
        """Carry it out; returns the outcome. Killed anywhere, it can be done again."""
        tree, subject = self.tree, self.subject
        if subject.kind == "into" and (not tree.folder.is_dir() or tree.uninstalled):
            return "gone"
        prepared = new_git_dir(self.workspace, tree.name)
        if subject.kind == "managed" and not tree.git_dir.is_dir() and prepared.is_dir():
            tree.folder.mkdir(parents=True, exist_ok=True)
            os.replace(prepared, tree.git_dir)
        tracked = self._index()
        if not self._usable() and not self._remade():
            return self._given_up()
        tracked = tracked or self._index()  # which git could not read before
        self._keep_work(tracked)
        self._to_base(self._others() or tracked)
        return "base"

    def _usable(self) -> bool:
        """Whether the repository holds the base whole and git can use it, its small files made anew where they are broken."""
        tree = self.tree
        if not tree.git_dir.is_dir():
            return False
        try:
            for name, made in _SMALL_FILES.items():
                place = tree.git_dir / name
                if not _is_broken(tree, name):
                    continue
                if os.path.lexists(place):
                    self.aside.take(place, f"{tree.name}.git", name)
                if made:
                    replace_file(place, made.format(base=self.subject.base).encode())
            if _trouble(tree, index=False) is not None:  # the way to the base writes one
                return False
            prove(tree, Move(None, self.subject.base), self.subject.base, whole=True)
        except BrokenRepository:
            return False
        return True

    def _remade(self) -> bool:
        """Make the repository anew from what holds the base whole: the cache, or the owner's own."""
        tree, base = self.tree, self.subject.base
        made = new_git_dir(self.workspace, tree.name)
        for source in self._sources():
            shutil.rmtree(made, ignore_errors=True)
            create_git_dir(made, self.subject.generated, file_modes=tree.kind == "managed")
            note_tree(made, tree, self.subject.folder, base, next(iter(self.subject.others), None))
            try:
                import_base(made, source)
                prove(tree, Move(None, base), base, made, whole=True)
            except (PatchctlError, OSError):
                continue
            self._bring_results(made)
            self._put_in_place(made)
            return True
        shutil.rmtree(made, ignore_errors=True)
        return False

    def _bring_results(self, made: Path) -> None:
        """Bring in what the cache remembers of the tree's other commits, so that their files are known for ours."""
        for file in sorted((self.cache / "stacks").glob("*/result.json")):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError, SourceMismatch):
                result = json.loads(file.read_text(encoding="utf-8"))
                if result["tip_commit"] in self.subject.others and result["pack"]:
                    bring_pack(file.with_name(Path(result["pack"]).name), made / "objects" / "pack")

    def _put_in_place(self, made: Path) -> None:
        tree = self.tree
        for name in ("installed-RECORD", "installed-bytecode"):  # the installer's own, which no cache has
            if (tree.git_dir / name).is_dir():
                shutil.copytree(tree.git_dir / name, made / name)
            elif (tree.git_dir / name).is_file():
                shutil.copy2(tree.git_dir / name, made / name)
        if os.path.lexists(tree.git_dir):
            self.aside.take(tree.git_dir, f"{tree.name}.git")
        tree.git_dir.parent.mkdir(parents=True, exist_ok=True)
        os.replace(made, tree.git_dir)

    def _sources(self) -> Iterator[Path]:
        name, base = self.tree.name, self.subject.base
        yield from (self.cache / "git" / name).glob(f"{base}.git")
        yield from sorted((self.cache / "sdist" / name).glob("*.git"))
        yield from self._owners()

    def _owners(self) -> list[Path]:
        """The repository of a checkout's owner, which may have the objects too."""
        owner = find_git_dir(self.tree.folder) if self.tree.kind == "into" else None
        return [object_store(owner).parent] if owner is not None else []

    def _given_up(self) -> str:
        """The tree cannot be made: it goes away whole; a checkout stays its owner's, as it is."""
        tree = self.tree
        if tree.kind == "managed":
            if os.path.lexists(tree.folder):
                self.aside.take(tree.folder, tree.name)
            return "aside"
        if os.path.lexists(tree.git_dir):
            self.aside.take(tree.git_dir, f"{tree.name}.git")
        return "left"

    def _keep_work(self, tracked: Files) -> None:
        """Keep commits that only HEAD names and staged content on branches, and what git has under way aside."""
        tree, ours = self.tree, {self.subject.base, *self.subject.others}
        for name in UNDER_WAY:
            if os.path.lexists(tree.git_dir / name):
                self.aside.take(tree.git_dir / name, f"{tree.name}.git", name)
        if tree.kind != "managed":
            return
        head = tree.work.head()
        if head is not None and head not in ours and not _on_branch(tree):
            tree.work.keep(head)
        try:
            staged = tree.work.staged_tree()
            kept = {self._tree_of(c) for c in (*ours, *([head] if head else []))}
            if staged is not None and tracked and staged not in kept:
                parent = head or self.subject.base
                tree.work.new_branch(staged, parent, parent)
        except GitFailed:  # unmerged entries, or objects that are gone
            self._keep_staged(tracked)

    def _keep_staged(self, tracked: Files) -> None:
        """Keep the content of each staged file that no commit of ours has."""
        others = [*self._others(), self.tree.files(self.subject.base)]
        with ObjectReader(self.tree.git_dir, self.tree.name) as reader:
            for path, entry in tracked.items():
                if all(side.get(path) != entry for side in others):
                    with contextlib.suppress(BrokenRepository):
                        _, data = reader.read(entry.id)
                        self.aside.write(data, f"{self.tree.name}.staged", *os.fsdecode(path).split("/"))

    def _tree_of(self, commit: str) -> str | None:
        try:
            with ObjectReader(self.tree.git_dir, self.tree.name) as reader:
                return commit_tree(reader, commit)
        except BrokenRepository:
            return None

    def _index(self) -> Files:
        """What the index names, for when the commit that it was made of cannot be read."""
        files: Files = {}
        try:
            listed = self.tree.work.git("ls-files", "--stage", "-z").split(b"\0") if self.tree.git_dir.is_dir() else []
        except GitFailed:
            return {}
        for line in filter(None, listed):
            about, _, path = line.partition(b"\t")
            mode, oid, _ = about.split()
            files[path] = Entry(int(mode, 8), oid.decode("ascii"))
        return files

    def _others(self) -> list[Files]:
        found = []
        for commit in dict.fromkeys(self.subject.others):
            for repo in (self.tree.git_dir, *self._owners()):
                with contextlib.suppress(BrokenRepository), ObjectReader(repo, self.tree.name) as reader:
                    found.append(reader.files(commit_tree(reader, commit)))
                    break
        return found

    def _to_base(self, known: list[Files] | Files) -> None:
        tree, subject = self.tree, self.subject
        base = tree.files(subject.base)
        sides = [base, *(known if isinstance(known, list) else [known])]
        files = TreeFiles(tree.folder)
        paths = {p for side in sides for p in side}
        if tree.kind == "into":  # a wheel never had every file
            paths = {p for side in sides[1:] for p in changed_paths(base, side)}
        todo = []
        for path in sorted(paths):
            files.clean(path)
            self._clear(files, path, sides, paths)
            if not self._same(files.entry(path), base.get(path)):
                todo.append(path)
        shown = Sides({p: e for side in reversed(sides) for p, e in side.items()}, base, {})
        tree.carry_out(Steps(shown, tuple(todo)))
        for side in sides[1:]:
            set_modes(tree, Sides(side, base, {}))
        known_digests = {p: d for p, d in subject.generated.items() if files.digest(p.encode()) == d}
        if tree.kind == "into":
            tree.remove_generated(known_digests)
            if subject.record and tree.kept_record.is_file():
                bring_bytecode_back(tree, base, base)
                write_record(tree, subject.base, subject.base, ())
            owner = find_git_dir(tree.folder)
            if owner is not None:
                WorkTree(owner, tree.folder).drop_refs()
            return
        self.generated = known_digests
        for lock in locks(tree):
            self.aside.take(lock, f"{tree.name}.git", lock.name)
        tree.work.write_index(subject.base)
        tree.work.set_refs(subject.base, subject.base, head=True)

    def _clear(self, files: TreeFiles, path: bytes, sides: list[Files], paths: set[bytes]) -> None:
        """Take out of the way what is a person's, where a file of the base goes or one of ours stood."""
        for above in files.not_folders(path):
            if above not in paths and path in sides[0]:
                self._take(above)
        have = files.entry(path)
        if have is None:
            return
        if have.mode == GITLINK:
            if path in sides[0] and sides[0][path].mode != GITLINK:
                for inside in [p for p in files.below(path) if p not in paths]:
                    self._take(inside)
            return
        if not any(self._same(have, side.get(path)) for side in sides):
            self._take(path)

    def _take(self, path: bytes) -> None:
        place = Path(os.fsdecode(os.fsencode(self.tree.folder) + b"/" + path))
        if os.path.lexists(place):
            self.aside.take(place, self.tree.name, *os.fsdecode(path).split("/"))

    def _same(self, have: Entry | None, wanted: Entry | None) -> bool:
        if have is None or wanted is None:
            return have is wanted or (wanted is None and have is not None and have.mode == GITLINK)
        if wanted.mode == GITLINK:
            return have.mode == GITLINK
        return have.id == wanted.id and (have.mode == wanted.mode or self.tree.kind == "into")
