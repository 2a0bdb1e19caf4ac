"""What is checked before a run writes anything: that objects are whole, places are writable and locks are free, and what a person
changed in a tree: edited files, staged content, flags in the index, a rebase in progress, ...

A run keeps local changes, or stops before anything is written with a message that says how to end the state that it cannot keep.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from patchctl.errors import BrokenRepository, LocalEdits, PatchctlError, WrongUse
from patchctl.git.catfile import ObjectReader
from patchctl.git.locks import Operation, check_free, find_operation
from patchctl.git.objects import GITLINK, Files, TreeEntry
from patchctl.git.run import GitFailed
from patchctl.git.worktree import SKIPPED, UNMERGED, Mark, WorkTree, find_git_dir, holds_packed, object_store
from patchctl.language import message
from patchctl.os_errors import as_user_error
from patchctl.workspace.tree_files import TreeFiles
from patchctl.workspace.trees import Move, Sides, Tree, changed_paths, commit_tree, sides_of


def edits_in(tree: Tree, commit: str, marks: Mapping[bytes, Mark]) -> list[bytes]:
    """Files that differ from `commit`, on disk (by git's stat cache, then by content) or in the index.

    `marks` are the index's: git does not look at a file that has one.
    """
    changed = tree.work.candidates(commit)
    edited = tree.differing(tree.files(commit), {*changed, *marks}) if changed or marks else []
    # Of an --in-place checkout we read our own index: what its owner staged stays staged.
    staged = tree.staged(commit) if tree.kind == "managed" else []
    return sorted({*edited, *staged})


def staged_during(tree: Tree, source: str | None, target: str | None) -> list[bytes]:
    """Paths staged since a run was interrupted: their index entry is neither that of `source` nor that of `target`."""
    if tree.kind != "managed" or source is None or target is None:
        return []
    return sorted({*tree.staged(source)} & {*tree.staged(target)})


def marks_in(tree: Tree) -> dict[bytes, Mark]:
    """The flags in the index by path; empty for an --in-place checkout, whose index of ours no user touches."""
    return tree.work.marks() if tree.kind == "managed" else {}


def operation_in(tree: Tree) -> Operation | None:
    """The git operation in progress in the tree, for an --in-place checkout in its owner's repository; None where there is none."""
    git_dir = tree.git_dir if tree.kind == "managed" else find_git_dir(tree.folder)
    return find_operation(git_dir) if git_dir else None


def refuse_operation(tree: Tree) -> None:
    """Raise LocalEdits while a git operation is in progress in the tree."""
    operation = operation_in(tree)
    if operation is not None:
        what = message("{name} is in progress in {folder}", name=operation.name, folder=tree.folder)
        raise LocalEdits(
            what, [str(operation.mark)], hint=message("end it there first: {todo}", todo=operation.way_out)
        )


def settled_marks(tree: Tree) -> dict[bytes, Mark]:
    """`marks_in`. Raises LocalEdits for what no run can keep, even with --stash: a git operation in progress, files in conflict,
    a sparse checkout."""
    refuse_operation(tree)
    marks = marks_in(tree)
    unmerged = [p for p, mark in marks.items() if mark.tag == UNMERGED]
    if unmerged:
        hint = message("settle them there: `git add FILE`, or `git checkout HEAD FILE`")
        raise LocalEdits(
            message("files of {name} are in conflict in its index", name=tree.name), tree.shown(unmerged), hint=hint
        )
    files = TreeFiles(tree.folder)
    absent = [p for p, mark in marks.items() if mark.tag in SKIPPED and files.digest(p) is None]
    if absent:
        hint = message(
            "`git -C {folder} sparse-checkout disable` brings them; or `git update-index --no-skip-worktree FILE`",
            folder=shlex.quote(str(tree.folder)),
        )
        raise LocalEdits(
            message("{folder} is a sparse checkout: files are not there", folder=tree.folder),
            tree.shown(absent),
            hint=hint,
        )
    return marks


def refuse_unkeepable(tree: Tree, paths: Iterable[bytes]) -> None:
    """Raise LocalEdits if any of these paths, or a file below one, cannot be kept on a branch: FIFOs, sockets, devices,
    repositories, unreadable files."""
    files, top = TreeFiles(tree.folder), os.fsencode(tree.folder) + b"/"
    bad: set[bytes] = set()
    for path in {next(iter(files.not_folders(p)), p) for p in paths}:
        folder = os.path.isdir(top + path) and not os.path.islink(top + path)
        bad |= {p for p in (files.everything(path) if folder else [path]) if not _keepable(top + p)}
    if bad:
        what = message(
            "files of {name} cannot be kept on a branch: they are no files, belong to a repository, or cannot be read",
            name=tree.name,
        )
        raise LocalEdits(what, tree.shown(sorted(bad)), hint=message("move them away"))


def _keepable(file: bytes) -> bool:
    try:
        mode = os.lstat(file).st_mode
    except OSError:  # a deletion can be kept
        return True
    return stat.S_ISLNK(mode) or (stat.S_ISREG(mode) and os.access(file, os.R_OK, effective_ids=True))


_UNWRITABLE = message("nothing was changed: apply or revert again when it can be written")


@dataclass(frozen=True)
class VerifiedMove:
    """The files of a move whose objects are all in the tree's repository; `written` knows the files of a new tree, which wait in a
    folder of their own."""

    sides: Sides
    written: TreeFiles | None = None


def verify_objects(
    tree: Tree,
    move: Move,
    base: str | None = None,
    git_dir: Path | None = None,
    *,
    whole: bool = False,
    written: TreeFiles | None = None,
) -> VerifiedMove:
    """Read and hash every tree of a move and every blob that it writes.

    With `base`, also the blobs that undoing the move would write, and those of a move from its end to this commit; with
    `whole`, every blob of this commit. `git_dir` is the repository while it is being made. With `written`, the files of a new tree
    are written there as they are read, so that they are read once. Raises BrokenRepository, GitKilled.
    """
    with ObjectReader(git_dir or tree.git_dir, tree.name, afresh=True) as reader:
        partly = base is not None and not whole and tree.kind == "managed"
        sides = sides_of(reader, move, whole=not partly)
        coming = _places(sides)
        others: set[str] = set()
        if base is not None:
            others = _others(reader, base, move, sides, whole=whole)
            others |= _blobs(sides.before, sides.paths) | _blobs(sides.kept, sides.paths)
        wanted = [*coming, *sorted(others - coming.keys())]
        for oid, (kind, data) in zip(wanted, reader.read_many(wanted), strict=True):
            if kind != "blob":
                what = message(
                    "the repository of {name}: object {oid}: a file was expected and it is a {kind}",
                    name=tree.name,
                    oid=oid,
                    kind=kind,
                )
                raise BrokenRepository(what, where=str(reader.repo))
            if written is not None:
                for path in coming.get(oid, ()):
                    written.create(path, sides.after[path], data)
    if written is not None:
        for path, entry in sides.after.items():
            if entry.mode == GITLINK:
                written.create(path, entry, b"")
    return VerifiedMove(sides, written)


def _places(sides: Sides) -> dict[str, list[bytes]]:
    """The paths of each blob that a move writes, in the order of the first of them: files of one folder lie together on a disk."""
    places: dict[str, list[bytes]] = {}
    for path in sorted(sides.paths & sides.after.keys()):
        if sides.after[path].mode != GITLINK:
            places.setdefault(sides.after[path].id, []).append(path)
    return places


def _others(reader: ObjectReader, base: str, move: Move, sides: Sides, *, whole: bool) -> set[str]:
    """The blobs of `base` that differ from those at the move's end; with `whole`, all of them."""
    if sides.folders is not None and move.target is not None:
        return _ids(reader.changes(commit_tree(reader, base), commit_tree(reader, move.target)).before.values())
    original = reader.files(commit_tree(reader, base))
    return _blobs(original, original if whole else changed_paths(original, sides.after))


def _blobs(files: Files, paths: Iterable[bytes]) -> set[str]:
    return _ids(entry for path in paths if (entry := files.get(path)) is not None)


def _ids(entries: Iterable[TreeEntry]) -> set[str]:
    return {entry.id for entry in entries if entry.mode != GITLINK}


def check_places(tree: Tree, base: str, paths: Iterable[bytes]) -> None:
    """Check that the folders of these paths and the repository can be written.

    Raises WrongUse where one cannot, LocalEdits when another git holds a lock that we need, and BrokenRepository when git cannot
    use the repository of a checkout's owner.
    """
    top = os.fsencode(tree.folder)
    for folder in sorted({os.path.dirname(top + b"/" + path) for path in paths}):
        _check_writable(_nearest_folder(folder))
        if os.path.isdir(folder + b"/__pycache__"):  # the modules' byte code goes with them
            _check_writable(folder + b"/__pycache__")
    if tree.git_dir.is_dir():
        _check_repository(tree.git_dir)
    if tree.kind == "managed":
        check_free(tree.git_dir, "index", "HEAD")
        return
    owner = find_git_dir(tree.folder)
    if owner is not None and _holds(owner, tree, base):
        store = object_store(owner).parent
        for name in ("objects", "objects/pack", "refs", "refs/patchctl"):
            _check_writable(_nearest_folder(os.fsencode(store / name)))
        if holds_packed(store):
            check_free(store, "packed-refs")


def _check_repository(git_dir: Path) -> None:
    for name in ("", "objects", "objects/pack", "refs", "refs/heads", "refs/patchctl", "logs", "info"):
        _check_writable(_nearest_folder(os.fsencode(git_dir / name)))


def _holds(owner: Path, tree: Tree, base: str) -> bool:
    try:
        return WorkTree(owner, tree.folder).has(base)
    except GitFailed as failure:
        what = f"git cannot use the repository of {tree.folder}: {git_message(failure)}"
        raise BrokenRepository(
            what, where=str(owner), hint=message("it is yours: mend it, or move its .git away")
        ) from failure


def _nearest_folder(folder: bytes) -> bytes:
    """The folder, or the first existing one above it."""
    while not os.path.isdir(folder) and len(folder) > 1:
        folder = os.path.dirname(folder)
    return folder


def _check_writable(folder: bytes) -> None:
    if os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        return
    readonly = os.statvfs(folder).f_flag & os.ST_RDONLY
    error = OSError(
        *((errno.EROFS, "its file system is read-only") if readonly else (errno.EACCES, "permission denied"))
    )
    error.filename = os.fsdecode(folder)
    raise as_user_error(error, message("this folder cannot be written"), _UNWRITABLE)


def git_error(failure: GitFailed) -> PatchctlError:
    """The error to raise for a git command that failed in a repository of the workspace."""
    where, why = failure.where, git_message(failure)
    for code in (errno.EACCES, errno.EPERM):
        if os.strerror(code) in failure.stderr:
            return WrongUse(
                message("git cannot write here: {why}", why=why),
                where=where,
                hint=message("the next apply or revert ends what was begun"),
            )
    if not failure.stderr.strip():  # git always says why it cannot use a repository: silence is an error of ours
        return PatchctlError(failure.what, where=where)
    return BrokenRepository(message("git cannot use this repository: {why}", why=why), where=where)


def git_message(failure: GitFailed) -> str:
    """The last line of git's error output, preferably one marked as an error."""
    lines = [line for line in failure.stderr.splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith(("fatal:", "error:"))]
    return (telling or lines or [f"status {failure.status}"])[-1]
