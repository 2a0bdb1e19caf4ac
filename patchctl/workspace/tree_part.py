"""One tree's part of a run, settled before anything is written: what the tree becomes, which of its files a user edited, and the
objects that it needs."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from patchctl.errors import BrokenRepository, LocalEdits, SourceMismatch, WrongUse
from patchctl.git.catfile import ObjectReader
from patchctl.git.objects import Files, TreeEntry
from patchctl.git.pack import bring_pack
from patchctl.git.worktree import WorkTree, create_git_dir, import_base
from patchctl.language import Translatable, joined, message
from patchctl.source.cache import REFRESH
from patchctl.stack import result_cache
from patchctl.stack.plan import PlannedStack
from patchctl.workspace.checks import VerifiedMove, edits_in, settled_marks, verify_objects
from patchctl.workspace.journal import TreeChange, new_git_dir, new_tree
from patchctl.workspace.pip_record import keep_record, record_is_ours
from patchctl.workspace.state import AppliedPatch, LeftOutFeature, TreeState
from patchctl.workspace.tree_files import TreeFiles
from patchctl.workspace.tree_repair import note_tree
from patchctl.workspace.trees import Move, Sides, Tree, commit_tree, sides_of


@dataclass(frozen=True)
class TreePart:
    """A tree's change. `planned` is None on the way back to the base; `fresh` means that nothing in the tree is ours yet."""

    change: TreeChange
    planned: PlannedStack | None
    after: TreeState | None
    fresh: bool

    @property
    def idle(self) -> bool:
        """Whether the tree is up to date already, according to its state."""
        change = self.change
        generated = {p: hashlib.sha256(t.encode()).hexdigest() for p, t in change.generated.items()}
        return change.source == change.target and generated == change.known and not self.fresh and not change.forget


class EditsOfSeveral(LocalEdits):
    """Local edits of several trees, reported together so that a user does not meet them one run at a time."""

    def __init__(self, refusals: Sequence[LocalEdits]) -> None:
        hints = dict.fromkeys(r.hint for r in refusals if r.hint)
        files = [file for r in refusals for file in r.files]
        super().__init__(joined((r.what for r in refusals), "; "), files, hint=joined(hints, "; ") or None)
        self.refusals = refusals

    def text(self, shown: Callable[[str], str] = str) -> str:
        return "\n".join(r.text(shown) for r in self.refusals)


def refuse_all(refusals: Sequence[LocalEdits]) -> None:
    """Raise these errors as one. Return where there are none."""
    if refusals:
        raise refusals[0] if len(refusals) == 1 else EditsOfSeveral(refusals)


def planned_state(planned: PlannedStack, old: TreeState | None, into: Path | None) -> TreeState:
    """The tree's state after the plan. Raises WrongUse when it was applied to another folder or on another base."""
    name, result, base = planned.upstream, planned.result, planned.base
    kind, folder = ("into", str(into.resolve())) if into is not None else ("managed", name)
    if old is not None and into is None and old.kind == "into":
        kind, folder = old.kind, old.folder
    if old is not None and (old.kind, old.folder) != (kind, folder):
        raise WrongUse(
            message("{name} is applied to {folder} already", name=name, folder=old.folder),
            hint=message("revert first, or use another workspace"),
        )
    if old is not None and kind == "into" and old.base_commit != result.base_commit:
        what = message(
            "{folder} was at {commit} when it was patched, and {stack} is for {revision}",
            folder=folder,
            commit=old.base_commit[:12],
            stack=planned.stack.name,
            revision=result.base_commit[:12],
        )
        raise WrongUse(
            what, hint=message("revert, bring the checkout to that revision, then apply with --in-place again")
        )
    known = old.record if old is not None and old.kind == kind else planned.record or ""
    patches = tuple(AppliedPatch(s.patch.file.name, s.patch.feature, s.patch.digest, s.commit) for s in result.steps)
    return TreeState(
        kind=kind,
        folder=folder,
        stack=planned.stack.name,
        form=base.form,
        origin=base.origin,
        base_commit=result.base_commit,
        base_tree=result.base_tree,
        tip_commit=result.tip_commit,
        tip_tree=result.tip_tree,
        locked=planned.locked,
        patches=patches,
        left_out=tuple(LeftOutFeature(o.patch.feature, o.reason) for o in planned.omitted),
        generated=dict(old.generated) if old else {},
        record=known if kind == "into" else "",
        pin_base=planned.own_base.pin if planned.own_base else "",
        differing=planned.own_base.differing if planned.own_base else (),
    )


def target_files(planned: PlannedStack) -> tuple[Files, Files]:
    """The files of the base and of the finished stack, read from the cache: the tree's repository may lack them yet."""
    with ObjectReader(planned.base.repo) as reader:
        base = reader.files(planned.base.tree)
    after = dict(base)
    for path, (_, entry) in _ends(planned).items():
        after.pop(path, None)
        if entry is not None:
            after[path] = entry
    return base, after


def _ends(planned: PlannedStack) -> dict[bytes, tuple[TreeEntry | None, TreeEntry | None]]:
    """Each file that the stack touches, before its first patch and after its last."""
    touched = [one for step in planned.result.steps for one in step.touched]
    first = {one.path: one.before for one in reversed(touched)}
    return {one.path: (first[one.path], one.after) for one in touched}


def touched_sides(part: TreePart, tree: Tree) -> Sides | None:
    """The files that a tree's change touches, or None when the tree's repository lacks the new base."""
    change = part.change
    if change.source is None or (part.planned is None and change.target is None):
        return None
    with ObjectReader(tree.git_dir, tree.name) as reader:
        if part.planned is None:
            return sides_of(reader, Move(change.source, change.target), whole=False)
        if not reader.holds(part.planned.base.commit):
            return None
        found = reader.changes(commit_tree(reader, change.source), part.planned.base.tree)
    before, after = dict(found.before), dict(found.after)
    for path, (was, entry) in _ends(part.planned).items():
        if path not in found.before and path not in found.after and was is not None:
            before[path] = was
        after.pop(path, None)
        if entry is not None:
            after[path] = entry
    return Sides(before, after, before)


def edits_of(part: TreePart, tree: Tree, sides: Sides) -> list[bytes]:
    """Files that a user edited, or put where a file of ours will be.

    Raises LocalEdits for what no run can keep, and when a checkout that is patched in place for the first time is not at the pin.
    """
    change = part.change
    marks = settled_marks(tree)
    if part.fresh:
        _check_pin(part, tree, sides)
        return tree.obstacles(sides)
    edits = set(edits_in(tree, change.source or change.base, marks)) | set(
        tree.edited_generated(change.generated, change.known)
    )
    if change.record and not record_is_ours(tree, change.base, change.source or change.base, change.known):
        edits.add(os.fsencode(change.record))
    if change.kind == "into" and change.source:
        edits.update(tree.brought_back_or_gone(change.base, change.source))
    deleted = _deleted_by(part.planned) - sides.before.keys() if part.planned else set()
    return sorted(edits | set(tree.obstacles(sides)) | set(tree.differing({}, deleted)))


def _deleted_by(planned: PlannedStack) -> set[bytes]:
    """Paths of the base that the stack deletes. A file there is the user's: no commit has it, and git calls it untracked."""
    return {path for path, (was, now) in _ends(planned).items() if was is not None and now is None}


def _check_pin(part: TreePart, tree: Tree, sides: Sides) -> None:
    """Raise LocalEdits unless every existing file is the pin's and every file that the patches change exists."""
    missing = sorted(p for p in sides.paths if p in sides.before and not tree.holds(p))
    differing = tree.differing(sides.before, sides.before)
    is_there = any(tree.holds(p) for p in sides.before)
    if not is_there:
        found = [message("no file of it is there")]
    else:
        found = [_differ(len(differing))] if differing else []
        names = joined(map(os.fsdecode, missing))
        found += [message("absent, and the patches change them: {names}", names=names)] * bool(missing)
    if not found:
        return
    hint = message(
        "`patchctl identify {folder}` says which revision it is; --on-this-base takes it as it is if no patch changes what differs",
        folder=shlex.quote(str(tree.folder)),
    )
    links = tree.links(differing)
    if links:
        hint = message(
            "{count} of them are symbolic links, as uv makes them with --link-mode symlink: install copies",
            count=len(links),
        )
    elif not is_there:
        hint = message("name the folder of the checkout, or of the package's site-packages")
    elif missing and not differing and part.planned is not None:
        lacking = [s.patch.feature for s in part.planned.result.steps if s.patch.paths & set(missing)]
        options = " ".join(f"--without {f}@{tree.name}" for f in lacking)
        hint = message("leave out what changes them: {options}", options=options)
    raise LocalEdits(
        message(
            "{folder} is not {name} at the pin: {problem}",
            folder=tree.folder,
            name=tree.name,
            problem=joined(found, "; "),
        ),
        tree.shown(differing),
        hint=hint,
    )


def _differ(count: int) -> Translatable:
    return message("{count} file differs", count=count) if count == 1 else message("{count} files differ", count=count)


def import_objects(workspace: Path, part: TreePart) -> VerifiedMove:
    """Import the objects that a change needs from the cache into the tree's repository, and verify the change with them.

    No visible file changes. Damage in the tree's repository is repaired from the cache where possible. Raises SourceMismatch
    when the cache's objects are damaged, after removing them again; BrokenRepository when the tree's own are.
    """
    assert part.planned is not None
    change, planned = part.change, part.planned
    tree = change.tree(workspace)
    git_dir = tree.git_dir
    if part.fresh:
        git_dir = new_git_dir(workspace, change.name) if change.kind == "managed" else git_dir
        shutil.rmtree(git_dir, ignore_errors=True)
        create_git_dir(git_dir, change.generated, file_modes=change.kind == "managed")
        note_tree(git_dir, tree, change.folder, change.base, change.target)
        if change.record:
            keep_record(tree)
    had = set(_packs(git_dir))
    files = None
    if part.fresh and change.kind == "managed" and not os.path.lexists(tree.folder):
        staged = new_tree(workspace, change.name)
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir()
        files = TreeFiles(staged)
    try:
        verified = _import_and_verify(tree, change, git_dir, planned, files)
    except (BrokenRepository, SourceMismatch) as damage:
        if not part.fresh and isinstance(damage, BrokenRepository):
            with contextlib.suppress(
                BrokenRepository
            ):  # damage of the current commit alone must not block the way out of it
                return verify_objects(tree, change.move)
        result_cache.drop(planned.result)
        for file in set(_packs(git_dir)) - had:
            file.unlink()
        if not part.fresh:
            verify_objects(tree, Move(change.base, change.source))  # raises when the tree's own objects are damaged
        what = message(
            "{upstream}: what came from the cache is damaged: {damage}", upstream=planned.upstream, damage=damage.what
        )
        raise SourceMismatch(
            what, where=str(planned.base.repo), hint=message("{todo}; then apply again", todo=REFRESH)
        ) from damage
    if part.fresh and change.kind == "into":
        tree.work.write_index(change.base)
    return verified


def _import_and_verify(
    tree: Tree, change: TreeChange, git_dir: Path, planned: PlannedStack, files: TreeFiles | None
) -> VerifiedMove:
    new = not WorkTree(git_dir, tree.folder).has(change.base)
    try:
        _import(git_dir, planned, base=new)
        return verify_objects(tree, change.move, change.base, git_dir, whole=new, written=files)
    except BrokenRepository:
        if new:
            raise
    _import(git_dir, planned, base=True, anew=True)  # the copies in the cache may be whole
    return verify_objects(tree, change.move, change.base, git_dir, whole=True)


def _import(git_dir: Path, planned: PlannedStack, *, base: bool, anew: bool = False) -> None:
    if base:
        import_base(git_dir, planned.base.repo, anew=anew)
    if planned.result.pack is not None:
        bring_pack(planned.result.pack, git_dir / "objects" / "pack", anew=anew)


def _packs(git_dir: Path) -> list[Path]:
    return sorted((git_dir / "objects" / "pack").glob("pack-*"))
