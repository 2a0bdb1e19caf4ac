"""Finds the trees that `patchctl repair` works on, from whatever can still be read: state, journal, the trees' own repositories.

Diagnoses one of them and brings it to its base. All user content is kept, in place or in the backup.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated

from patchctl.atomic import replace_file
from patchctl.doc import Doc
from patchctl.errors import BadManifest, BrokenRepository, PatchctlError, SourceMismatch
from patchctl.git.catfile import ObjectReader
from patchctl.git.locks import OPERATIONS
from patchctl.git.objects import GITLINK, Files, TreeEntry
from patchctl.git.pack import bring_pack
from patchctl.git.run import GitFailed, run_git
from patchctl.git.worktree import WorkTree, base_ref, create_git_dir, find_git_dir, import_base, object_store
from patchctl.manifest.typeinfo import parse
from patchctl.manifest.types import ObjectId
from patchctl.workspace.checks import git_message, verify_objects
from patchctl.workspace.journal import Journal, new_git_dir, read_journal
from patchctl.workspace.pip_record import restore_bytecode, write_record
from patchctl.workspace.state import FOLDER, FileText, TreeState, WorkspaceState, check_place, load_state, save_json
from patchctl.workspace.tree_files import TreeFiles
from patchctl.workspace.trees import Move, Sides, Steps, Tree, changed_paths, commit_tree, set_modes

_NOTE = "patchctl-tree.json"


@dataclass(frozen=True)
class RepairTarget:
    """A tree with its base, the other commits whose files it may hold, and the generated files we wrote (path to digest)."""

    name: str
    kind: str
    folder: str
    base: str
    record: str = ""
    others: tuple[str, ...] = ()
    generated: dict[str, str] = field(default_factory=dict)
    state: TreeState | None = None

    def tree(self, workspace: Path) -> Tree:
        return Tree(workspace, self.name, self.kind, self.folder, self.record)


def repair_marker(workspace: Path) -> Path:
    """The file that exists while a repair is unfinished."""
    return workspace / FOLDER / "repair-begun"


@dataclass(frozen=True)
class LastKnown:
    """The state and journal of a workspace, with the errors of those that cannot be read."""

    state: WorkspaceState | None
    journal: Journal | None
    errors: tuple[BadManifest, ...]


def last_known(workspace: Path) -> LastKnown:
    """Read state and journal. Never raises for their content."""
    errors = []
    state = journal = None
    try:
        state = load_state(workspace)
    except BadManifest as error:
        errors.append(error)
    try:
        journal = read_journal(workspace)
    except BadManifest as error:
        errors.append(error)
    return LastKnown(state, journal, tuple(errors))


@dataclass(frozen=True)
class _Note:
    kind: str
    folder: FileText
    record: FileText
    base: ObjectId
    tip: ObjectId


def note_tree(git_dir: Path, tree: Tree, folder: str, base: str, tip: str | None) -> None:
    """Record in the repository which tree it belongs to, with its base and first tip, in case the state is lost."""
    save_json(git_dir / _NOTE, asdict(_Note(tree.kind, folder, tree.record, base, tip or base)))


def repair_targets(workspace: Path, last: LastKnown) -> list[RepairTarget]:
    """Every tree of the workspace, sorted by name."""
    found: dict[str, RepairTarget] = {}
    for name, tree in (last.state.trees if last.state else {}).items():
        found[name] = RepairTarget(
            name, tree.kind, tree.folder, tree.base_commit, tree.record, (tree.tip_commit,), tree.generated, tree
        )
    for change in last.journal.changes if last.journal else ():
        others = tuple(i for i in (change.source, change.target) if i)
        known = found.get(change.name) or RepairTarget(
            change.name, change.kind, change.folder, change.base, change.record
        )
        placed = change.taken_back(known=True).known
        found[change.name] = replace(known, others=known.others + others, generated={**known.generated, **placed})
    if last.errors:
        for target in _discovered(workspace):
            found.setdefault(target.name, target)
    return [found[name] for name in sorted(found)]


def _discovered(workspace: Path) -> Iterator[RepairTarget]:
    for git_dir in [*workspace.glob("*/.git"), *(workspace / FOLDER).glob("into/*.git")]:
        managed = git_dir.name == ".git"
        tips = [tip] if (tip := base_ref(git_dir, "tip")) else []
        name = git_dir.parent.name if managed else git_dir.name.removesuffix(".git")
        try:
            note = parse(_Note, (git_dir / _NOTE).read_text(encoding="utf-8"), others=True)
            check_place(name, note.kind, note.folder, note.record)
            tips.append(note.tip)
        except (OSError, ValueError):
            found = base_ref(git_dir) if managed else None
            if found is None:
                continue
            note = _Note("managed", name, "", found, found)
        if (note.kind == "managed") == managed:
            yield RepairTarget(name, note.kind, note.folder, note.base, note.record, tuple(tips))


_LOCKED = ("index", "HEAD", "config", "packed-refs", "shallow")


@dataclass(frozen=True)
class WorkspaceProblem:
    """A problem with a workspace."""

    kind: Annotated[
        str, Doc("`interrupted`, `journal`, `state`, `repair`, `repository-missing`, `repository`, `objects` or `lock`")
    ]
    place: Annotated[str, Doc("affected file or folder")]
    message: Annotated[str, Doc("description of the problem")]


def diagnose(workspace: Path, target: RepairTarget) -> Iterator[WorkspaceProblem]:
    """Find what is wrong with a tree's repository. Writes nothing."""
    tree = target.tree(workspace)
    if target.kind == "into" and (not tree.folder.is_dir() or tree.uninstalled):
        return  # removed by its owner: the next revert forgets it
    if not tree.git_dir.is_dir():
        yield WorkspaceProblem("repository-missing", str(tree.git_dir), f"the repository of {tree.name} is not there")
        return
    for lock in locks(tree):
        yield WorkspaceProblem("lock", str(lock), f"a git in {tree.name} has not ended, or was killed")
    trouble = _trouble(tree)
    if trouble:
        yield WorkspaceProblem(
            "repository", str(tree.git_dir), f"git cannot use the repository of {tree.name}: {trouble}"
        )
    try:
        for commit in dict.fromkeys((target.base, *target.others)):
            verify_objects(tree, Move(None, commit), target.base, whole=True)
    except BrokenRepository as damage:
        yield WorkspaceProblem("objects", str(tree.git_dir), damage.what)


def locks(tree: Tree) -> list[Path]:
    """Return the git locks in a tree's repository that would block us."""
    return [lock for name in _LOCKED if os.path.lexists(lock := tree.git_dir / f"{name}.lock")]


def _trouble(tree: Tree, *, index: bool = True) -> str | None:
    """Why git cannot use a tree's repository, or None. Unless `index`, a missing index does not count."""
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
        return git_message(failure)
    return None


def _on_branch(tree: Tree) -> bool:
    return (tree.git_dir / "HEAD").read_bytes().startswith(b"ref: ")


# Files that git needs besides objects and references, in the order that it reads them, with replacement content.
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


class TreeRepair:
    """Brings one tree to its base."""

    def __init__(self, workspace: Path, target: RepairTarget, backup: Backup, cache: Path) -> None:
        self.workspace = workspace
        self.target = target
        self.backup = backup
        self.cache = cache
        self.tree = target.tree(workspace)
        self.generated: dict[str, str] = {}

    def run(self) -> str:
        """Run the repair and return the `outcome` of RepairedTree. Can be run again after a kill at any time."""
        tree, target = self.tree, self.target
        if target.kind == "into" and (not tree.folder.is_dir() or tree.uninstalled):
            return "gone"
        prepared = new_git_dir(self.workspace, tree.name)
        if target.kind == "managed" and not tree.git_dir.is_dir() and prepared.is_dir():
            tree.folder.mkdir(parents=True, exist_ok=True)
            os.replace(prepared, tree.git_dir)
        tracked = self._index()
        if not self._usable() and not self._remade():
            return self._given_up()
        tracked = tracked or self._index()  # unreadable to git before
        self._keep_work(tracked)
        self._to_base(self._others() or tracked)
        return "base"

    def _usable(self) -> bool:
        """Replace broken small files; return whether git can use the repository and it holds the whole base."""
        tree = self.tree
        if not tree.git_dir.is_dir():
            return False
        try:
            for name, made in _SMALL_FILES.items():
                place = tree.git_dir / name
                if not _is_broken(tree, name):
                    continue
                if os.path.lexists(place):
                    self.backup.take(place, f"{tree.name}.git", name)
                if made:
                    replace_file(place, made.format(base=self.target.base).encode())
            if _trouble(tree, index=False) is not None:  # moving to the base writes one
                return False
            verify_objects(tree, Move(None, self.target.base), self.target.base, whole=True)
        except BrokenRepository:
            return False
        return True

    def _remade(self) -> bool:
        """Recreate the repository from one that holds the whole base: the cache's, or that of a checkout's owner."""
        tree, base = self.tree, self.target.base
        made = new_git_dir(self.workspace, tree.name)
        for source in self._sources():
            shutil.rmtree(made, ignore_errors=True)
            create_git_dir(made, self.target.generated, file_modes=tree.kind == "managed")
            note_tree(made, tree, self.target.folder, base, next(iter(self.target.others), None))
            try:
                import_base(made, source)
                verify_objects(tree, Move(None, base), base, made, whole=True)
            except (PatchctlError, OSError):
                continue
            self._bring_results(made)
            self._put_in_place(made)
            return True
        shutil.rmtree(made, ignore_errors=True)
        return False

    def _bring_results(self, made: Path) -> None:
        """Import the tree's other commits from the cache, so that their files are recognised as ours."""
        for file in sorted((self.cache / "stacks").glob("*/result.json")):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError, SourceMismatch):
                result = json.loads(file.read_text(encoding="utf-8"))
                if result["tip_commit"] in self.target.others and result["pack"]:
                    bring_pack(file.with_name(Path(result["pack"]).name), made / "objects" / "pack")

    def _put_in_place(self, made: Path) -> None:
        tree = self.tree
        for name in ("installed-RECORD", "installed-bytecode"):  # the installer's own files, which are in no cache
            if (tree.git_dir / name).is_dir():
                shutil.copytree(tree.git_dir / name, made / name)
            elif (tree.git_dir / name).is_file():
                shutil.copy2(tree.git_dir / name, made / name)
        if os.path.lexists(tree.git_dir):
            self.backup.take(tree.git_dir, f"{tree.name}.git")
        tree.git_dir.parent.mkdir(parents=True, exist_ok=True)
        os.replace(made, tree.git_dir)

    def _sources(self) -> Iterator[Path]:
        name, base = self.tree.name, self.target.base
        yield from (self.cache / "git" / name).glob(f"{base}.git")
        yield from sorted((self.cache / "sdist" / name).glob("*.git"))
        yield from self._owners()

    def _owners(self) -> list[Path]:
        """Return the repository of a checkout's owner, which may have the objects too."""
        owner = find_git_dir(self.tree.folder) if self.tree.kind == "into" else None
        return [object_store(owner).parent] if owner is not None else []

    def _given_up(self) -> str:
        """Without a base, move a managed tree to the backup, and leave a checkout as it is."""
        tree = self.tree
        if tree.kind == "managed":
            if os.path.lexists(tree.folder):
                self.backup.take(tree.folder, tree.name)
            return "aside"
        if os.path.lexists(tree.git_dir):
            self.backup.take(tree.git_dir, f"{tree.name}.git")
        return "left"

    def _keep_work(self, tracked: Files) -> None:
        """Put commits that only HEAD references, and staged content, on branches; back up the files of an operation in progress."""
        tree, ours = self.tree, {self.target.base, *self.target.others}
        for name in OPERATIONS:
            if os.path.lexists(tree.git_dir / name):
                self.backup.take(tree.git_dir / name, f"{tree.name}.git", name)
        if tree.kind != "managed":
            return
        head = tree.work.head()
        if head is not None and head not in ours and not _on_branch(tree):
            tree.work.keep(head)
        try:
            staged = tree.work.staged_tree()
            kept = {self._tree_of(c) for c in (*ours, *([head] if head else []))}
            if staged is not None and tracked and staged not in kept:
                parent = head or self.target.base
                tree.work.new_branch(staged, parent, parent)
        except GitFailed:  # unmerged entries or missing objects
            self._keep_staged(tracked)

    def _keep_staged(self, tracked: Files) -> None:
        """Back up the content of each staged file that no commit of ours has."""
        others = [*self._others(), self.tree.files(self.target.base)]
        with ObjectReader(self.tree.git_dir, self.tree.name) as reader:
            for path, entry in tracked.items():
                if all(side.get(path) != entry for side in others):
                    with contextlib.suppress(BrokenRepository):
                        _, data = reader.read(entry.id)
                        self.backup.write(data, f"{self.tree.name}.staged", *os.fsdecode(path).split("/"))

    def _tree_of(self, commit: str) -> str | None:
        try:
            with ObjectReader(self.tree.git_dir, self.tree.name) as reader:
                return commit_tree(reader, commit)
        except BrokenRepository:
            return None

    def _index(self) -> Files:
        """Return the index entries, for when the commit that it was made from cannot be read."""
        files: Files = {}
        try:
            listed = self.tree.work.git("ls-files", "--stage", "-z").split(b"\0") if self.tree.git_dir.is_dir() else []
        except GitFailed:
            return {}
        for line in filter(None, listed):
            about, _, path = line.partition(b"\t")
            mode, oid, _ = about.split()
            files[path] = TreeEntry(int(mode, 8), oid.decode("ascii"))
        return files

    def _others(self) -> list[Files]:
        found = []
        for commit in dict.fromkeys(self.target.others):
            for repo in (self.tree.git_dir, *self._owners()):
                with contextlib.suppress(BrokenRepository), ObjectReader(repo, self.tree.name) as reader:
                    found.append(reader.files(commit_tree(reader, commit)))
                    break
        return found

    def _to_base(self, known: list[Files] | Files) -> None:
        tree, target = self.tree, self.target
        base = tree.files(target.base)
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
        known_digests = {p: d for p, d in target.generated.items() if files.digest(p.encode()) == d}
        if tree.kind == "into":
            tree.remove_generated(known_digests)
            if target.record and tree.kept_record.is_file():
                restore_bytecode(tree, base, base)
                write_record(tree, target.base, target.base, ())
            owner = find_git_dir(tree.folder)
            if owner is not None:
                WorkTree(owner, tree.folder).drop_refs()
            return
        self.generated = known_digests
        for lock in locks(tree):
            self.backup.take(lock, f"{tree.name}.git", lock.name)
        tree.work.write_index(target.base)
        tree.work.set_refs(target.base, target.base, head=True)

    def _clear(self, files: TreeFiles, path: bytes, sides: list[Files], paths: set[bytes]) -> None:
        """Back up user files that occupy paths of the base or of a patched file."""
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
            self.backup.take(place, self.tree.name, *os.fsdecode(path).split("/"))

    def _same(self, have: TreeEntry | None, wanted: TreeEntry | None) -> bool:
        is_folder = wanted is None and have is not None and have.mode == GITLINK
        return is_folder or self.tree.exactly(have, wanted)


class Backup:
    """The folder `repair-N` in the workspace, N being the first free number. Nothing in it is ever overwritten.

    It is created with its first content; `kept` lists everything in it.
    """

    def __init__(self, workspace: Path) -> None:
        numbers = (n for n in range(1, 1_000_000) if not os.path.lexists(workspace / f"repair-{n}"))
        self.folder = workspace / f"repair-{next(numbers)}"
        self.kept: list[Path] = []

    def take(self, place: Path, *name: str) -> None:
        """Move `place` to this name in the folder."""
        target = self._free(name)
        try:
            os.rename(place, target)
        except OSError:  # another file system: copy first, so that a kill leaves both
            unfinished = target.with_name(f"{target.name}.unfinished")
            if place.is_dir() and not place.is_symlink():
                shutil.copytree(place, unfinished, symlinks=True, dirs_exist_ok=True)
                unfinished.rename(target)
                shutil.rmtree(place)
            else:
                shutil.copy2(place, unfinished, follow_symlinks=False)
                unfinished.rename(target)
                place.unlink()

    def copy(self, place: Path, *name: str) -> None:
        """Back up a copy of a file."""
        shutil.copy2(place, self._free(name), follow_symlinks=False)

    def write(self, data: bytes, *name: str) -> None:
        """Back up content that is in no file."""
        replace_file(self._free(name), data)

    def _free(self, name: tuple[str, ...]) -> Path:
        wanted = self.folder.joinpath(*name)
        target, number = wanted, 1
        wanted.parent.mkdir(parents=True, exist_ok=True)
        while os.path.lexists(target):
            number += 1
            target = wanted.with_name(f"{wanted.name}.{number}")
        self.kept.append(target)
        return target
