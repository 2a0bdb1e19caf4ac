"""The work tree in which a user changes a stack: an ordinary repository with a branch, the base and one commit per patch.

An export notes in it what it is about to write, so that the next one can go on after a kill. Patch files that are neither what
the work tree was made from nor what it gives were changed by someone, and stop an export; the mixture of both that a killed
export leaves is distinguished from such an edit by this note alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from patchctl.atomic import replace_file
from patchctl.errors import LocalEdits, PatchctlError, SourceUnavailable, WrongUse
from patchctl.git.catfile import ObjectReader
from patchctl.git.history import CommitInfo, commits_between
from patchctl.git.locks import wait_for
from patchctl.git.objects import COMMITTER
from patchctl.git.pack import bring_pack
from patchctl.git.run import GitFailed, run_git
from patchctl.git.worktree import Mark, WorkTree, add_exclude, create_git_dir, import_base
from patchctl.manifest.default_roots import edit_folder
from patchctl.manifest.distribution import Distribution, check_outside
from patchctl.manifest.files import rewrite_patches
from patchctl.manifest.series import place_of
from patchctl.manifest.types import Stack
from patchctl.source.obtain import obtain
from patchctl.source.types import Base, SourceOptions
from patchctl.stack.build import StackBuilder
from patchctl.stack.export import Exported, compare_stack, export_commits, remove_gone, write_stack
from patchctl.stack.patches import StackPatch, load_patch
from patchctl.stack.plan import build_stack, load_patches, missing_files
from patchctl.stack.result_cache import StackResult
from patchctl.terminal.progress import Progress
from patchctl.terminal.text import patch_count
from patchctl.workspace.checks import edits_in, marks_in, refuse_operation
from patchctl.workspace.tree_files import TreeFiles
from patchctl.workspace.trees import Move, Tree, commit_tree

_KEYS = ("upstream", "stack", "base", "tip")
_LATER_KEYS = ("pin", "patches")
_EXPORTED = "patchctl-exported.json"  # newer than what the configuration has of these


def default_folder(stack: Stack) -> Path:
    """The work tree that the current folder is in, else where `edit` puts one when nobody says where, seen from here."""
    here = Path.cwd()
    around = (one for one in (here, *here.parents) if stack_of(one) == f"{stack.upstream}/{stack.name}")
    return next(around, edit_folder() / f"{stack.upstream}-{stack.name}")


def how_to_export(stack: Stack, folder: Path) -> str:
    """What takes a work tree's commits over."""
    elsewhere = f" --dir {shlex.quote(str(folder))}" if folder.absolute() != default_folder(stack).absolute() else ""
    return f"patchctl export {stack.upstream}/{stack.name}{elsewhere}"


def make_edit_tree(folder: Path, stack: Stack, base: Base, result: StackResult, digest: str = "") -> None:
    """Make the work tree, under another name until it is whole. `digest` is `series_digest` of the patch files.

    Raises LocalEdits when `folder` holds commits that were not exported, or anything else.
    """
    if folder.exists() and any(folder.iterdir()):
        _check_exported(folder, stack)
    building, old = (folder.with_name(f".{folder.name}.patchctl-{word}") for word in ("new", "old"))
    shutil.rmtree(building, ignore_errors=True)
    _fill(building, stack, base, result, digest, settings_of=folder)
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)  # a kill while it is being deleted must not leave half of it in its place
    building.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _fill(folder: Path, stack: Stack, base: Base, result: StackResult, digest: str, settings_of: Path) -> None:
    make_object_store(folder / ".git", base, result, [g.path for g in stack.generated])
    _take_over(settings_of / ".git", folder / ".git", [g.path for g in stack.generated])
    tree = tree_of(folder)
    tree.carry_out(tree.steps(tree.sides(Move(None, result.tip_commit))))
    tree.place_generated({g.path: g.content.encode() for g in stack.generated})
    work = tree.work
    work.write_index(result.tip_commit)
    old = tree_of(settings_of)
    if old.git_dir.is_dir():
        work.flag({path: mark.tag for path, mark in old.work.marks().items()})
        _keep_modes(old.folder, tree.folder, tree.files(result.tip_commit))
    branch = f"refs/heads/patchctl/{stack.name}"
    work.git("update-ref", branch, result.tip_commit)
    work.git("symbolic-ref", "HEAD", branch)
    work.set_refs(base.commit, result.tip_commit)
    ids = dict(zip(_KEYS, (stack.upstream, stack.name, base.commit, result.tip_commit), strict=True))
    # Patches are the distribution's, no matter who commits: the lint rule `author`.
    names = dict(zip(("user.name", "user.email"), COMMITTER, strict=True))
    _note(folder, {**{f"patchctl.{k}": v for k, v in ids.items()}, **names})
    _note(folder, {"patchctl.pin": stack.pin.identity, "patchctl.patches": digest})


def _take_over(old: Path, new: Path, generated: Sequence[str]) -> None:
    """What a person set up in the repository of the work tree before: its configuration, hooks, and ignored paths."""
    for name in ("config", "config.worktree", "info/exclude", "info/attributes", "info/sparse-checkout"):
        if (old / name).is_file():
            shutil.copyfile(old / name, new / name)
    if (old / "hooks").is_dir():
        shutil.copytree(old / "hooks", new / "hooks", symlinks=True, dirs_exist_ok=True)
    add_exclude(new, generated)


def _keep_modes(old: Path, new: Path, paths: Iterable[bytes]) -> None:
    """Permissions beyond what git knows of: files that are for their owner's eyes only, ..."""
    for path in map(os.fsdecode, paths):
        before, after = old / path, (new / path).lstat().st_mode
        if before.is_file() and not before.is_symlink() and not (before.stat().st_mode ^ after) & 0o100:
            (new / path).chmod(before.stat().st_mode & 0o777)


def make_object_store(git_dir: Path, base: Base, result: StackResult, exclude: Sequence[str] = ()) -> Path:
    """A new git directory with every object of a base and of a stack on it; returns it."""
    create_git_dir(git_dir, exclude)
    import_base(git_dir, base.repo)
    if result.pack is not None:
        bring_pack(result.pack, git_dir / "objects" / "pack")
    return git_dir


def read_edit_tree(folder: Path, stack: Stack) -> tuple[str, list[CommitInfo]]:
    """The base commit and the commits on it. Raises WrongUse, and LocalEdits when changes are not committed."""
    noted = _noted(folder)
    if (noted.get("upstream"), noted.get("stack")) != (stack.upstream, stack.name):
        known = f"{noted.get('upstream')}/{noted.get('stack')}" if noted else "nothing that patchctl made"
        raise WrongUse(
            f"{folder} holds {known}, not {stack.upstream}/{stack.name}",
            hint=f"`patchctl edit {stack.upstream}/{stack.name}` makes a work tree",
        )
    if noted.get("pin", stack.pin.identity) != stack.pin.identity:
        hint = "edit it anew in another folder, and bring your commits there with `git cherry-pick`"
        raise WrongUse(f"{folder} stands on another pin than {stack.upstream}/{stack.name} has now", hint=hint)
    tree = tree_of(folder)
    refuse_operation(tree)
    open_changes = _uncommitted(tree, marks_in(tree)) + [os.fsdecode(p) for p in tree.work.untracked()]
    if not open_changes:
        _check_whole(folder)
    if open_changes:
        raise LocalEdits(
            f"{folder} has changes that are not committed",
            open_changes,
            hint="commit them, or remove what is no part of a patch; only commits become patches",
        )
    return noted["base"], commits_between(folder, noted["base"])


def stack_of(folder: Path) -> str | None:
    """UPSTREAM/STACK of a work tree; None for a folder that `edit` did not make."""
    noted = _noted(folder)
    return f"{noted['upstream']}/{noted['stack']}" if {"upstream", "stack"} <= noted.keys() else None


def tree_of(folder: Path) -> Tree:
    return Tree(folder.parent, folder.name, "managed", folder.name)


def _uncommitted(tree: Tree, marks: Mapping[bytes, Mark]) -> list[str]:
    """Tracked files with changes that no commit has yet."""
    head = tree.work.head()
    return [os.fsdecode(p) for p in edits_in(tree, head, marks)] if head else []


def _check_whole(folder: Path) -> None:
    """Raise LocalEdits when HEAD is detached below a branch, as in a bisect: the commits above it would be left out."""
    work = WorkTree(folder / ".git", folder)
    head = (folder / ".git" / "HEAD").read_text(encoding="utf-8").strip()
    if head.startswith("ref: "):
        return
    above = work.git("for-each-ref", "--format=%(refname:short)", f"--contains={head}", "refs/heads/").decode().split()
    longer = [b for b in above if work.git("rev-parse", f"refs/heads/{b}").decode().strip() != head]
    if longer:
        what = f"{folder} has no branch checked out, and {longer[0]} has commits that HEAD at {head[:12]} has not"
        raise LocalEdits(what, [str(folder)], hint=f"`git bisect reset`, or `git checkout {longer[0]}`, then export")


def check_patch_files(folder: Path, digest: str) -> None:
    """Raise LocalEdits when the patch files are not those that the work tree was made of, or exported to: an export would
    take back what someone else changed in them. `digest` is `series_digest` of the files as they are now."""
    if _noted(folder).get("patches") not in (digest, "", None):
        hint = "edit them anew in another folder, and bring your commits there with `git cherry-pick`"
        raise LocalEdits("the patch files were changed since this work tree was made of them", [str(folder)], hint=hint)


def series_digest(series: Iterable[tuple[str, bytes, Mapping[str, bytes]]]) -> str:
    """One digest over the names, the bytes and the carried files of a stack's patches."""
    total = hashlib.sha256()
    for name, data, carried in series:
        for path, content in [(name, data), *sorted(carried.items())]:
            total.update(f"{len(path.encode())} {path} {len(content)} ".encode() + content)
    return total.hexdigest()


def _noted(folder: Path) -> dict[str, str]:
    """What `edit` wrote into the work tree's configuration; empty for a folder that it did not make."""
    config = folder / ".git" / "config"
    try:
        out = (
            run_git(["config", "--file", str(config), "-z", "--get-regexp", r"^patchctl\."])
            if config.is_file()
            else b""
        )
    except GitFailed:  # it says nothing of us, or cannot be read
        return {}
    pairs = (pair.partition("\n") for pair in out.decode("utf-8", "replace").split("\0"))
    found = {key.removeprefix("patchctl."): value for key, _, value in pairs}
    if not found.keys() >= set(_KEYS):
        return {}
    return {**{k: found[k] for k in (*_KEYS, *_LATER_KEYS) if k in found}, **_exported(folder / ".git")}


def _note(folder: Path, values: Mapping[str, str]) -> None:
    for key, value in values.items():
        run_git(["config", "--file", str(folder / ".git" / "config"), key, value])


def _exported(git_dir: Path) -> dict[str, str]:
    """What the last export noted; nothing before the first."""
    try:
        held = json.loads((git_dir / _EXPORTED).read_bytes())
        return {key: held[key] for key in ("tip", "patches") if isinstance(held[key], str)}
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return {}


def _check_exported(folder: Path, stack: Stack) -> None:
    """Raise LocalEdits when the folder holds anything that is not in the patch files too."""
    noted = _noted(folder)
    if not noted:
        what = f"{folder} is there already and is no work tree of patchctl's"
        raise LocalEdits(what, [str(folder)], hint="name another folder with --dir")
    tree = tree_of(folder)
    refuse_operation(tree)
    held = wait_for([tree.git_dir / "index.lock", tree.git_dir / "HEAD.lock"])
    if held:
        hint = "let it end, or remove the lock that a killed git left"
        raise LocalEdits(f"git is at work in {folder}", [str(p) for p in held], hint=hint)
    hint = f"`{how_to_export(stack, folder)}` takes it over; or remove the folder"
    if tree.work.head() != noted["tip"] or _uncommitted(tree, {}) or tree.work.untracked():
        raise LocalEdits(f"{folder} holds work that was not exported", [str(folder)], hint=hint)
    _check_unseen(tree, noted["tip"], {g.path for g in stack.generated})
    _check_references(tree, stack, noted["tip"])


def _check_unseen(tree: Tree, tip: str, generated: Collection[str]) -> None:
    """Ignored files and edits under a flag, and what git does not count as files: repositories, FIFOs, sockets."""
    tracked = tree.files(tip)
    unseen = set(tree.differing(tracked, tree.work.marks()))
    known = tracked.keys() | {os.fsencode(path) for path in generated}
    unseen |= {p for p in TreeFiles(tree.folder).everything() if p not in known and not p.endswith(b".pyc")}
    if unseen:
        what = (
            f"{tree.folder} holds files that git does not show: ignored ones, edits under skip-worktree or "
            "assume-unchanged, repositories, FIFOs or sockets"
        )
        raise LocalEdits(
            what, [os.fsdecode(p) for p in sorted(unseen)], hint="move them elsewhere, or remove the folder"
        )


def references_of_a_person(work: WorkTree, names: Iterable[str], branch: str) -> list[str]:
    """Those of the references `names` that are not ours, and the work trees that were linked to this repository."""
    linked = work.git_dir / "worktrees"
    found = [name for name in names if name not in (branch, "refs/patchctl/base", "refs/patchctl/tip")]
    return found + ([str(place) for place in linked.iterdir()] if linked.is_dir() else [])


def _check_references(tree: Tree, stack: Stack, tip: str) -> None:
    """Branches, tags, notes and stashes of a person's, and work trees that were linked to this repository."""
    branch = f"refs/heads/patchctl/{stack.name}"
    names = tree.work.git("for-each-ref", "--format=%(refname)").decode("utf-8", "replace").split()
    found = references_of_a_person(tree.work, names, branch)
    found += [branch] if branch in names and tree.work.git("rev-list", "--max-count=1", branch, "--not", tip) else []
    if found:
        what = f"{tree.folder} holds commits on another branch, references or linked work trees that were not exported"
        raise LocalEdits(what, found, hint="remove them, or the folder, when you need them no longer")


def mark_exported(folder: Path, digest: str) -> None:
    """Note that HEAD is what the patch files hold now. In a file of ours, by rename: a git that is killed while it changes the
    configuration leaves a lock there, at which every later one stops."""
    head = tree_of(folder).work.git("rev-parse", "--verify", "HEAD").decode().strip()
    replace_file(folder / ".git" / _EXPORTED, json.dumps({"tip": head, "patches": digest}).encode())


@dataclass(frozen=True)
class Opened:
    """A work tree with the stack's commits, in `folder`."""

    folder: Path
    result: StackResult


def open_stack(
    dist: Distribution, stack: Stack, folder: Path | None, options: SourceOptions, progress: Progress
) -> Opened:
    """Make the work tree, in `folder` or where it belongs.

    Raises SourceUnavailable, and LocalEdits when what is there was not exported.
    """
    base = obtain(dist.upstream(stack.upstream), stack, options, progress)
    progress.finish()
    patches = load_patches(dist, stack)
    lacking = missing_files(base, patches)
    if lacking:
        named = ", ".join(p.feature for p, _ in lacking)
        hint = f"--mirror {stack.upstream}=URL names a git repository, which has every file"
        raise SourceUnavailable(f"the {base.form} of {stack.upstream} lacks files of {named}", [], hint=hint)
    result = build_stack(base, patches, [], options.cache)
    place = (folder or default_folder(stack)).absolute()
    check_outside(dist.root, place)
    digest = series_digest((p.file.name, p.data, p.carried) for p in patches)
    make_edit_tree(place, stack, base, result, digest)
    return Opened(place, result)


_NOTE = "patchctl-exporting.json"
Series = Iterable[tuple[str, bytes, Mapping[str, bytes]]]  # of each patch its file's name, its bytes, its carried files


def note_export(folder: Path, before: Series, after: Series) -> None:
    """Note what the patch files are and what the export will make of them. Raises OSError."""
    known: dict[str, list[str]] = {}
    for side in (before, after):
        for path, digest in _digests(side).items():
            known.setdefault(path, []).append(digest)
    replace_file(_file(folder), json.dumps(known, indent=1, sort_keys=True).encode())


def is_half_exported(folder: Path, now: Series) -> bool:
    """Whether an export of this work tree was interrupted, and every file is as before or as after it."""
    try:
        known = json.loads(_file(folder).read_bytes())
        return all(digest in known.get(path, ()) for path, digest in _digests(now).items())
    except (FileNotFoundError, ValueError, TypeError, AttributeError):
        return False


def end_export(folder: Path) -> None:
    """Remove the note: everything is written and marked. Raises OSError."""
    _file(folder).unlink(missing_ok=True)


def _digests(series: Series) -> dict[str, str]:
    found = {}
    for name, data, carried in series:
        for path, content in ((name, data), *((f"files/{p}", c) for p, c in carried.items())):
            found[path] = hashlib.sha256(content).hexdigest()
    return found


def _file(folder: Path) -> Path:
    return folder / ".git" / _NOTE


def export_tree(
    dist: Distribution, stack: Stack, folder: Path | None, options: SourceOptions, *, check: bool
) -> tuple[list[Exported], list[str]]:
    """Return the stack's patches as its work tree has them, and what differs; write them unless `check`.

    With `check` and no work tree, build the stack in memory instead.
    """
    patches = load_patches(dist, stack)
    tree = (folder or default_folder(stack)).absolute()
    if not tree.exists() and not check:
        hint = f"`patchctl edit {stack.upstream}/{stack.name}` makes one, or name it with --dir"
        raise WrongUse(f"there is no work tree at {tree}", hint=hint)
    exported = _from_tree(tree, stack, patches) if tree.exists() else _from_memory(dist, stack, patches, options)
    target = dist.root / "patches" / stack.upstream / stack.name
    own = [p for p in patches if p.file.parent.parent == target]
    ours = _without_inherited(stack, exported, [p for p in patches if p.file.parent.parent != target])
    changes = compare_stack(target, ours, own)
    if not check:
        changes += _write(dist, stack, tree, patches, exported, ours)
    return exported, changes


def _without_inherited(stack: Stack, exported: list[Exported], inherited: list[StackPatch]) -> list[Exported]:
    """Return this stack's own patches. Raises WrongUse if a patch of the stack it extends was changed."""
    given = {e.name: (e.data, e.carried) for e in exported}
    if any(given.get(p.file.name) != (p.data, p.carried) for p in inherited):
        what = f"a patch of the stack that {stack.name} extends was changed"
        raise WrongUse(what, hint=f"edit {stack.upstream}/{stack.extends}")
    names = {p.file.name for p in inherited}
    return [e for e in exported if e.name not in names]


def _write(
    dist: Distribution,
    stack: Stack,
    tree: Path,
    patches: list[StackPatch],
    exported: list[Exported],
    ours: list[Exported],
) -> list[str]:
    """Write files, then the manifest's list, then remove what is gone, so that a killed run leaves no listed file missing."""
    before = [(p.file.name, p.data, p.carried) for p in patches]
    after = [(e.name, e.data, e.carried) for e in exported]
    if not is_half_exported(tree, before):
        check_patch_files(tree, series_digest(before))
    target = dist.root / "patches" / stack.upstream / stack.name
    note_export(tree, before, after)
    write_stack(target, ours)
    changes = _write_list(dist.stack_file(stack), stack, [e.name for e in ours])
    remove_gone(target, ours, [p for p in patches if p.file.parent.parent == target])
    mark_exported(tree, series_digest(after))
    end_export(tree)
    return changes


def _from_tree(tree: Path, stack: Stack, patches: list[StackPatch]) -> list[Exported]:
    base, commits = read_edit_tree(tree, stack)
    with ObjectReader(tree / ".git") as reader:
        before = commit_tree(reader, base)
        exported = export_commits(reader, before, commits, patches)
        check_read_back(reader, base, commits[-1].tree if commits else before, exported)
    return exported


def check_read_back(reader: ObjectReader, base: str, tree: str, exported: Sequence[Exported]) -> None:
    """Raise PatchctlError unless the patch files, read as `apply` reads them, give the tree of the commits on `base`."""
    with tempfile.TemporaryDirectory(prefix="patchctl-export-") as scratch:
        folder = Path(scratch) / "stack"
        write_stack(folder, exported)
        patches = [load_patch(folder / place_of(e.name), folder) for e in exported]
        built = StackBuilder(reader, base, commit_tree(reader, base)).build(patches)
    if built.tip_tree != tree:
        raise PatchctlError(f"the patch files give tree {built.tip_tree}, and the commits {tree}; nothing was written")


def _from_memory(dist: Distribution, stack: Stack, patches: list[StackPatch], options: SourceOptions) -> list[Exported]:
    """Build the stack in a temporary repository and export it from there."""
    base, result = _build(dist, stack, patches, options)
    with tempfile.TemporaryDirectory(prefix="patchctl-export-") as scratch:
        folder = Path(scratch) / "tree"
        make_edit_tree(folder, stack, base, result)
        return _from_tree(folder, stack, patches)


def _write_list(manifest: Path, stack: Stack, names: list[str]) -> list[str]:
    """Write the patches' names into the stack's manifest, and change no other line of it."""
    own = [n for n in names if n not in stack.replace.values()]
    if own == stack.patches:
        return []
    text = manifest.read_text(encoding="utf-8")
    replace_file(manifest, rewrite_patches(text, own).encode())
    return [f"{manifest.name} lists {patch_count(len(own))}"]


@contextmanager
def built(
    dist: Distribution, stack: Stack, patches: list[StackPatch], options: SourceOptions, left_out: Sequence[StackPatch]
) -> Iterator[tuple[ObjectReader, StackResult]]:
    """Build a stack in a temporary repository, and yield a reader of all objects of its base and commits."""
    base, result = _build(dist, stack, patches, options, left_out)
    with tempfile.TemporaryDirectory(prefix="patchctl-export-") as scratch:
        store = make_object_store(Path(scratch) / "objects.git", base, result)
        with ObjectReader(store) as reader:
            yield reader, result


def _build(
    dist: Distribution,
    stack: Stack,
    patches: list[StackPatch],
    options: SourceOptions,
    left_out: Sequence[StackPatch] = (),
) -> tuple[Base, StackResult]:
    base = obtain(dist.upstream(stack.upstream), stack, options, Progress())
    return base, build_stack(base, patches, left_out, options.cache)
