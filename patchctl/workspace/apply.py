"""Applying a plan to a workspace, and taking it back: all trees or none.

A run settles what every tree is to become (`_Run`), stops at user edits in any file that would change, imports and verifies
the objects, writes the journal and carries it out. Only the last two change anything that a user sees.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from patchctl.doc import Doc
from patchctl.errors import BrokenRepository, LocalEdits, WrongUse
from patchctl.git.run import GitFailed
from patchctl.language import message
from patchctl.os_errors import as_user_error, os_reason
from patchctl.source.obtain import CACHE
from patchctl.stack.plan import Plan, PlannedStack, Skipped
from patchctl.workspace.checks import (
    VerifiedMove,
    check_places,
    git_error,
    refuse_unkeepable,
    settled_marks,
    staged_during,
    verify_objects,
)
from patchctl.workspace.journal import REPAIR, Journal, TreeChange, finish, read_journal, recovery, write_journal
from patchctl.workspace.state import FOLDER, SkippedUpstream, TreeState, WorkspaceState, load_state
from patchctl.workspace.tree_part import (
    TreePart,
    edits_of,
    import_objects,
    planned_state,
    refuse_all,
    target_files,
    touched_sides,
)
from patchctl.workspace.tree_repair import repair_marker
from patchctl.workspace.trees import STASH_HINT, Sides, Tree
from patchctl.workspace.workspace_lock import clean_up, drop_own_locks, tree_locks, workspace_lock

_UNDONE = "verb of an interrupted run that was rolled back first because objects of its result were damaged"
_STASHED = "branch that keeps local edits, by upstream; for an `--in-place` checkout `BRANCH of PATH`, PATH being the repository"


@dataclass(frozen=True)
class ApplyOutcome:
    """What a run did: the state now, the trees that changed, an interrupted run that it `finished` first or took back
    (`undone`), branches with user edits by tree, and the release that the profile was on before, if it was another one."""

    state: WorkspaceState
    changed: tuple[str, ...]
    finished: str | None
    stashed: Mapping[str, str]
    undone: str | None = None
    moved_from: str | None = None


@dataclass(frozen=True)
class ApplyOutput:
    """What `apply` prints."""

    profile: Annotated[str, Doc("profile name")]
    release: Annotated[str | None, Doc("release name; null if the profile names its stacks itself")]
    workspace: Annotated[Path, Doc("workspace path")]
    dry_run: Annotated[bool, Doc("true if nothing was written")]
    without: Annotated[tuple[str, ...], Doc("features left out with `--without`")]
    changed: Annotated[tuple[str, ...], Doc("upstreams whose trees changed, or would change in a dry run")]
    finished: Annotated[str | None, Doc("verb of an interrupted run that was completed first")]
    undone: Annotated[str | None, Doc(_UNDONE)]
    stashed: Annotated[Mapping[str, str], Doc(_STASHED)]
    trees: Annotated[dict[str, TreeState], Doc("current trees of the workspace, by upstream")]
    skipped: Annotated[tuple[SkippedUpstream, ...], Doc("with `--skip-unavailable`: unavailable upstreams")]
    kept: Annotated[
        tuple[Skipped, ...],
        Doc("with `--skip-unavailable`: trees left as applied because their sources are no longer available"),
    ]


def apply_output(plan: Plan, outcome: ApplyOutcome, workspace: Path, *, dry_run: bool) -> ApplyOutput:
    """Return the workspace, and what the run did."""
    head = (plan.profile.name, plan.profile.release, workspace, dry_run, plan.without)
    done, state = (outcome.changed, outcome.finished, outcome.undone, outcome.stashed), outcome.state
    return ApplyOutput(*head, *done, state.trees, state.skipped, plan.kept)


@dataclass(frozen=True)
class RevertedTree:
    """A tree that the workspace still manages."""

    folder: Annotated[str, Doc("path relative to the workspace")]
    commit: Annotated[str, Doc("current commit of the tree")]


@dataclass(frozen=True)
class RevertOutput:
    """What `revert` prints."""

    workspace: Annotated[Path, Doc("workspace path")]
    changed: Annotated[tuple[str, ...], Doc("upstreams whose trees were reverted")]
    finished: Annotated[str | None, Doc("verb of an interrupted run that was completed first")]
    undone: Annotated[str | None, Doc(_UNDONE)]
    stashed: Annotated[Mapping[str, str], Doc(_STASHED)]
    trees: Annotated[dict[str, RevertedTree], Doc("trees that the workspace still manages, by upstream")]


def revert_output(outcome: ApplyOutcome, workspace: Path) -> RevertOutput:
    """Return the workspace, and what the run did."""
    trees = {name: RevertedTree(tree.folder, tree.tip_commit) for name, tree in outcome.state.trees.items()}
    return RevertOutput(workspace, outcome.changed, outcome.finished, outcome.undone, outcome.stashed, trees)


def apply_plan(
    workspace: Path, plan: Plan, root: Path, into: Mapping[str, Path], *, stash: bool = False
) -> ApplyOutcome:
    """Bring the workspace to the plan. After a kill at any time, the next run finishes it. Raises LocalEdits, WorkspaceBusy."""
    with writing(workspace), workspace_lock(workspace), tree_locks(workspace, into.values()):
        return _Run(workspace, stash).apply(plan, root, into)


def preview(workspace: Path, plan: Plan, root: Path, into: Mapping[str, Path], *, stash: bool = False) -> ApplyOutcome:
    """What `apply_plan` would do. Takes no lock, writes nothing; raises LocalEdits where the real run would stop."""
    return _Run(workspace, stash, dry=True).apply(plan, root, into)


def revert(workspace: Path, *, stash: bool = False) -> ApplyOutcome:
    """Take every tree back to its base. Raises WrongUse when nothing was applied."""
    if not (workspace / FOLDER).is_dir():
        raise WrongUse(
            message("{workspace} is no workspace", workspace=workspace), hint=message("name it with --workspace DIR")
        )
    with writing(workspace), workspace_lock(workspace), tree_locks(workspace):
        return _Run(workspace, stash).revert()


@contextmanager
def writing(workspace: Path) -> Iterator[None]:
    """Turn errors of the machine (a full or read-only disk) and of git into messages: a later run can finish what was begun."""
    try:
        yield
    except GitFailed as failure:
        raise git_error(failure) from failure
    except OSError as error:
        ends = message("the next apply or revert ends what was begun")
        hint = message("name another place") if error.errno == errno.EROFS else ends
        raise as_user_error(error, message("it cannot be written or read"), hint, workspace) from error


class _Run:
    """One run, under the lock unless it is `dry`. It finishes an interrupted run first."""

    def __init__(self, workspace: Path, stash: bool, dry: bool = False) -> None:
        self.workspace = workspace
        self.stash = stash
        self.dry = dry
        self.finished: str | None = None
        self.undone: str | None = None
        self.stashed: dict[str, str] = {}
        self._known_sides: dict[str, Sides] = {}
        self._stale: list[Tree] = []
        if repair_marker(workspace).exists():
            what = message("a repair of {workspace} was interrupted", workspace=workspace)
            raise LocalEdits(what, [str(repair_marker(workspace))], hint=message("`patchctl repair` ends it"))
        journal = read_journal(workspace)
        if journal is not None and dry:
            hint = message("apply or revert without --dry-run finishes it")
            raise WrongUse(
                message("{verb} of {workspace} was interrupted", verb=journal.verb, workspace=workspace), hint=hint
            )
        if journal is not None:
            self._recover(journal)
        self.state = load_state(workspace)
        if not dry:
            trees = self.state.trees if self.state else {}
            drop_own_locks([Tree.of(workspace, name, tree) for name, tree in trees.items()])
            self._sweep(self.state)

    def apply(self, plan: Plan, root: Path, into: Mapping[str, Path]) -> ApplyOutcome:
        before = self.state.trees if self.state else {}
        parts = [self._part(p, before.get(p.upstream), into) for p in plan.stacks]
        after = {p.change.name: p.after for p in parts if p.after is not None}
        after |= {s.upstream: before[s.upstream] for s in plan.kept if s.upstream in before}
        for name, tree in before.items():  # an upstream that is not in this profile goes back to its base
            if name not in after and self._is_there(name, tree):
                parts.append(self._back(name, tree))
                after[name] = _at_base(tree)
        # Without places in the cache: states are copied into images and to other machines, which have no such folder.
        skipped = tuple(
            SkippedUpstream(s.upstream, tuple((t.place, t.reason) for t in s.tried if not t.place.startswith(CACHE)))
            for s in plan.skipped
        )
        was = self.state.release if self.state is not None and self.state.profile == plan.profile.name else None
        outcome = self._carry_out(
            "apply",
            parts,
            WorkspaceState(plan.profile.name, str(root), plan.without, after, skipped, plan.profile.release),
        )
        return outcome if was == plan.profile.release else replace(outcome, moved_from=was)

    def revert(self) -> ApplyOutcome:
        if self.state is None:
            raise WrongUse(
                message("nothing was applied to {workspace}", workspace=self.workspace),
                hint=message("name the workspace with --workspace DIR"),
            )
        before = self.state.trees
        parts = [self._back(name, tree) for name, tree in before.items() if self._is_there(name, tree)]
        trees = {n: _at_base(t) for n, t in before.items() if t.kind == "managed"}
        return self._carry_out("revert", parts, WorkspaceState(None, self.state.root, (), trees, ()))

    def _is_there(self, name: str, state: TreeState) -> bool:
        """Whether the tree still exists: an `--in-place` checkout or package may have been deleted since."""
        tree = Tree.of(self.workspace, name, state)
        return state.kind == "managed" or (tree.folder.is_dir() and not tree.uninstalled)

    def _recover(self, journal: Journal) -> None:
        """Finish an interrupted run, after checking every file: a user may have edited some since."""
        way = recovery(self.workspace, journal, load_state(self.workspace))
        verified = dict(way.verified)
        changes = []
        refusals: list[LocalEdits] = []
        for change in way.journal.changes:
            tree = change.tree(self.workspace)
            settled_marks(tree)
            during = tree.edits_during(verified[change.name].sides)
            found = {*during, *staged_during(tree, change.source, change.target)}
            if change.stash is None:
                found |= set(tree.edited_generated(change.generated, change.known))
            if found and not self.stash:
                refusals.append(tree.refusal(sorted(found)))
            elif found:  # with those kept before that are still there
                move = replace(change.move, stash=None)
                found |= set(tree.edits_during(tree.sides(move)))
                refuse_unkeepable(tree, found)
                change = replace(change, stash=self._keep(tree, change.target or change.base, found))
                verified[change.name] = verify_objects(tree, change.move)
            changes.append(change)
        refuse_all(refusals)
        journal = replace(way.journal, changes=tuple(changes))
        write_journal(self.workspace, journal)
        finish(self.workspace, journal, verified)
        self.finished, self.undone = (None, journal.verb) if way.back else (journal.verb, None)

    def _part(self, planned: PlannedStack, old: TreeState | None, into: Mapping[str, Path]) -> TreePart:
        name = planned.upstream
        after = planned_state(planned, old, into.get(name))
        tree = Tree(self.workspace, name, after.kind, after.folder, after.record)
        if old is not None and Tree.of(self.workspace, name, old).uninstalled:
            what = message(
                "{name} was patched where it was installed, and is no longer: {path} is gone",
                name=name,
                path=tree.folder / old.record,
            )
            raise WrongUse(what, hint=message("`patchctl revert` forgets it; then apply again"))
        known = dict(old.generated) if old else {}
        wanted = {g.path: g.content for g in planned.stack.generated}
        if after.kind == "into" and not tree.folder.is_dir():
            raise WrongUse(message("--in-place {name}: there is no folder {folder}", name=name, folder=tree.folder))
        fresh = old is None or (after.kind == "managed" and not _holds_anything(tree.folder))
        if fresh and after.kind == "managed":
            known = {}
            if tree.folder.is_symlink() or _holds_anything(tree.folder):
                hint = message("name another workspace, or patch this folder where it is with --in-place")
                raise LocalEdits(
                    message("{name} would be written where something else is", name=name), [str(tree.folder)], hint=hint
                )
        # A file that the owner of a tree already has there stays.
        wanted = {p: t for p, t in wanted.items() if p in known or not tree.holds(p.encode())}
        source = old.tip_commit if old is not None and not fresh else None
        if fresh and after.kind == "into":
            source = after.base_commit
        change = TreeChange(
            name,
            after.kind,
            after.folder,
            after.base_commit,
            source,
            after.tip_commit,
            None,
            wanted,
            known,
            record=after.record,
            before=tree.texts(known),
        )
        return TreePart(change, planned, after, fresh)

    def _back(self, name: str, old: TreeState) -> TreePart:
        tree = Tree.of(self.workspace, name, old)
        if not tree.git_dir.is_dir():
            raise LocalEdits(message("the repository of {name} is gone", name=name), [str(tree.git_dir)], hint=REPAIR)
        known = dict(old.generated)
        edited = tree.edited_generated({}, known)
        # They stay in a managed tree at its base: the unpatched package needs them as well.
        before = tree.texts(known)
        texts = {p: t for p, t in before.items() if old.kind == "managed" and p.encode() not in edited}
        change = TreeChange(
            name,
            old.kind,
            old.folder,
            old.base_commit,
            old.tip_commit,
            old.base_commit,
            None,
            texts,
            known,
            record=old.record,
            before=before,
        )
        return TreePart(change, None, None, fresh=False)

    def _carry_out(self, verb: str, parts: Sequence[TreePart], after: WorkspaceState) -> ApplyOutcome:
        if verb == "revert":  # afterwards, an `--in-place` checkout is no longer ours
            parts = [replace(p, change=replace(p.change, forget=p.change.kind == "into")) for p in parts]
        edited = self._all_edited(parts)
        active = [p for p in parts if not p.idle or p.change.name in edited]
        changed = tuple(p.change.name for p in active)
        if self.dry or (self.state == after and not active):
            self._refresh()
            return ApplyOutcome(after, changed, self.finished, {}, self.undone)
        try:
            for part in active:
                self._check_places(part)
            verified = {p.change.name: self._verified(p) for p in active}
        except BaseException:
            self._sweep(self.state)
            raise
        changes = self._all_stashed(active, edited, verified)
        journal = Journal(verb, tuple(changes), after)
        write_journal(self.workspace, journal)
        state = finish(self.workspace, journal, verified)
        self._sweep(state)
        return ApplyOutcome(state, changed, self.finished, self.stashed, self.undone)

    def _refresh(self) -> None:
        """Refresh the index of trees that were copied, as into an image: git would read every file at every run."""
        for tree in () if self.dry else self._stale:
            with suppress(GitFailed, LocalEdits, OSError):  # the next run that may write does it
                tree.work.refresh()

    def _all_edited(self, parts: Sequence[TreePart]) -> dict[str, list[bytes]]:
        """`_edited` of every tree where it is not None. Raises LocalEdits with the edits of all trees."""
        edited: dict[str, list[bytes]] = {}
        refusals: list[LocalEdits] = []
        for part in parts:
            try:
                found = self._edited(part)
            except LocalEdits as edits:
                refusals.append(edits)
                continue
            except PermissionError as error:
                refusals.append(_closed(part, self.workspace, error))
                continue
            if found is not None:
                edited[part.change.name] = found
        refuse_all(refusals)
        return edited

    def _edited(self, part: TreePart) -> list[bytes] | None:
        """Files that a user edited and that go on a branch; None where none have to. Raises LocalEdits without --stash."""
        change = part.change
        tree = change.tree(self.workspace)
        if part.fresh and change.kind == "managed":
            return None
        if not tree.git_dir.is_dir() and not part.fresh:
            raise LocalEdits(
                message("the repository of {name} is gone", name=tree.name), [str(tree.git_dir)], hint=REPAIR
            )
        edits = edits_of(part, tree, self._sides(part, tree))
        head = tree.work.head() if change.kind == "managed" else change.source
        moved = head != change.source
        if self.stash and change.kind == "managed":
            edits = sorted({*edits, *tree.work.untracked()})
        if not edits and not moved:
            self._stale += [tree] if tree.work.is_stale and change.kind == "managed" else []
            return None
        if self.stash and not part.fresh:
            refuse_unkeepable(tree, edits)
            return edits
        if part.fresh:
            raise LocalEdits(
                message("files in {folder} are in the way", folder=tree.folder),
                tree.shown(edits),
                hint=message("move them away"),
            )
        if edits:
            raise LocalEdits(
                message("{name} was edited since it was applied", name=tree.name), tree.shown(edits), hint=STASH_HINT
            )
        raise LocalEdits(
            message("HEAD of {name} was moved to {head}", name=tree.name, head=head),
            [str(tree.folder)],
            hint=STASH_HINT,
        )

    def _sides(self, part: TreePart, tree: Tree) -> Sides:
        name = part.change.name
        if name not in self._known_sides:
            self._known_sides[name] = self._sides_of(part, tree)
        return self._known_sides[name]

    def _sides_of(self, part: TreePart, tree: Tree) -> Sides:
        change = part.change
        if part.idle and not part.fresh:
            return Sides({}, {}, {})
        if tree.kind == "managed" and not part.fresh and (sides := touched_sides(part, tree)) is not None:
            return sides
        base, after = target_files(part.planned) if part.planned else ({}, tree.files(change.target or change.base))
        before = base if part.fresh else tree.files(change.source or change.base)
        return Sides(before, after, before)

    def _all_stashed(
        self, active: Sequence[TreePart], edited: Mapping[str, list[bytes]], verified: dict[str, VerifiedMove]
    ) -> list[TreeChange]:
        """The changes, after putting the edits of every tree on a branch: of all trees, or of none. Updates `verified`."""
        changes = []
        try:
            for part in active:
                change = self._stashing(part.change, edited.get(part.change.name))
                if change.stash is not None:
                    tree = change.tree(self.workspace)
                    verified[change.name] = verify_objects(tree, change.move, change.base)
                    tree.steps(verified[change.name].sides)
                changes.append(change)
        except BaseException:
            for part in active:
                if part.change.name in self.stashed:
                    branch = self.stashed.pop(part.change.name).partition(" ")[0]
                    part.change.tree(self.workspace).work.drop_branch(branch)
            raise
        return changes

    def _stashing(self, change: TreeChange, edits: list[bytes] | None) -> TreeChange:
        if edits is None or change.source is None:
            return change
        return replace(change, stash=self._keep(change.tree(self.workspace), change.source, edits))

    def _keep(self, tree: Tree, commit: str, edits: Sequence[bytes] | set[bytes]) -> str:
        branch, tree_id = tree.keep_on_branch(commit, edits)
        self.stashed[tree.name] = branch if tree.kind == "managed" else f"{branch} of {tree.git_dir}"
        return tree_id

    def _check_places(self, part: TreePart) -> None:
        change = part.change
        tree = change.tree(self.workspace)
        named = [*change.generated, *change.known, *([change.record] if change.record else [])]
        check_places(tree, change.base, [*self._sides(part, tree).paths, *map(os.fsencode, named)])

    def _verified(self, part: TreePart) -> VerifiedMove:
        """Import the objects that the tree needs, and verify them."""
        if part.planned is not None:
            return import_objects(self.workspace, part)
        change, tree = part.change, part.change.tree(self.workspace)
        try:
            return verify_objects(tree, change.move, change.base)
        except BrokenRepository:  # damage of the current commit alone must not block the way out of it
            return verify_objects(tree, change.move)

    def _sweep(self, state: WorkspaceState | None) -> None:
        for name, place in clean_up(self.workspace, state).items():
            if name in self.stashed:
                self.stashed[name] = f"{self.stashed[name].partition(' ')[0]} of {place}"


def _closed(part: TreePart, workspace: Path, error: PermissionError) -> LocalEdits:
    """The refusal for an unreadable file of a tree, which may hold user edits. Raises any other error again."""
    tree = part.change.tree(workspace)
    place = Path(os.fsdecode(error.filename or b""))
    if not place.is_relative_to(tree.folder) or place.is_relative_to(tree.git_dir):
        raise error
    return LocalEdits(
        message("a file of {name} cannot be read: {error}", name=tree.name, error=os_reason(error)),
        [str(place)],
        hint=as_user_error(error, "", "").hint,
    )


def _holds_anything(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


def _at_base(tree: TreeState) -> TreeState:
    return replace(tree, tip_commit=tree.base_commit, tip_tree=tree.base_tree, patches=(), left_out=(), locked=False)
