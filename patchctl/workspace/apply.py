"""Applying a plan to a workspace, and taking it back: all trees or none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from patchctl.errors import LocalEdits, WrongUse
from patchctl.git.pack import copy_pack
from patchctl.git.worktree import create_git_dir, import_base
from patchctl.stack.plan import Plan, PlannedStack
from patchctl.workspace.journal import Journal, TreeChange, finish, new_git_dir, read_journal, write_journal
from patchctl.workspace.lock import workspace_lock
from patchctl.workspace.state import FOLDER, AppliedPatch, LeftOut, SkippedUpstream, State, TreeState, load_state
from patchctl.workspace.trees import STASH_HINT, Tree


@dataclass(frozen=True)
class Outcome:
    """What a run did: the state now, trees that changed, an interrupted run that it finished first, branches with edits."""

    state: State
    changed: tuple[str, ...]
    finished: str | None
    stashed: Mapping[str, str]


def apply_plan(workspace: Path, plan: Plan, root: Path, into: Mapping[str, Path], *, stash: bool = False) -> Outcome:
    """Make the workspace what the plan says. Raises LocalEdits, WorkspaceBusy; a kill at any time can be finished later."""
    with workspace_lock(workspace):
        return _Run(workspace, stash).apply(plan, root, into)


def preview(workspace: Path, plan: Plan, root: Path, into: Mapping[str, Path]) -> Outcome:
    """What `apply_plan` would do. Takes no lock, writes nothing; raises LocalEdits where the real run would stop."""
    return _Run(workspace, stash=False, dry=True).apply(plan, root, into)


def revert(workspace: Path, *, stash: bool = False) -> Outcome:
    """Take every tree back to its base. Raises WrongUse when nothing was ever applied."""
    if not (workspace / FOLDER).is_dir():
        raise WrongUse(f"{workspace} is no workspace", hint="name it with --workspace DIR")
    with workspace_lock(workspace):
        return _Run(workspace, stash).revert()


class _Run:
    """One writing run, under the lock. An interrupted run before it is finished first."""

    def __init__(self, workspace: Path, stash: bool, dry: bool = False) -> None:
        self.workspace = workspace
        self.stash = stash
        self.dry = dry
        self.finished: str | None = None
        self.stashed: dict[str, str] = {}
        journal = read_journal(workspace)
        if journal is not None and not dry:
            finish(workspace, journal)
            self.finished = journal.verb
        self.state = load_state(workspace)

    def apply(self, plan: Plan, root: Path, into: Mapping[str, Path]) -> Outcome:
        before = self.state.trees if self.state else {}
        after = {p.upstream: self._after(p, before, into, root) for p in plan.stacks}
        for name, tree in before.items():  # an upstream that this profile does not have goes back to its base
            after.setdefault(name, _at_base(tree))
        skipped = tuple(SkippedUpstream(s.upstream, tuple((t.place, t.reason) for t in s.tried)) for s in plan.skipped)
        state = State(plan.profile.name, str(root), plan.without, after, skipped)
        changes = [self._change(p, before.get(p.upstream), after[p.upstream]) for p in plan.stacks]
        planned = {p.upstream for p in plan.stacks}
        changes += [self._back(name, before[name]) for name in before if name not in planned]
        return self._carry_out(Journal("apply", tuple(changes), state), plan.stacks)

    def revert(self) -> Outcome:
        if self.state is None:
            raise WrongUse(f"nothing was applied to {self.workspace}", hint="name the workspace with --workspace DIR")
        before = self.state.trees
        changes = [replace(self._back(n, t), forget=t.kind == "into") for n, t in before.items()]
        trees = {n: _at_base(t) for n, t in before.items() if t.kind == "managed"}
        return self._carry_out(Journal("revert", tuple(changes), State(None, self.state.root, (), trees, ())), [])

    def _after(
        self, planned: PlannedStack, before: Mapping[str, TreeState], into: Mapping[str, Path], root: Path
    ) -> TreeState:
        name, result, base = planned.upstream, planned.result, planned.base
        old = before.get(name)
        kind, folder = ("into", str(into[name].resolve())) if name in into else ("managed", name)
        if old is not None and name not in into and old.kind == "into":
            kind, folder = old.kind, old.folder
        if old is not None and (old.kind, old.folder) != (kind, folder):
            raise WrongUse(f"{name} is applied to {old.folder} already", hint="revert first, or use another workspace")
        patches = tuple(
            AppliedPatch(s.patch.file.name, s.patch.feature, s.patch.digest, s.commit) for s in result.steps
        )
        return TreeState(
            kind=kind, folder=folder, stack=planned.stack.name, form=base.form, origin=base.origin,
            base_commit=result.base_commit, base_tree=result.base_tree,
            tip_commit=result.tip_commit, tip_tree=result.tip_tree, locked=planned.locked, patches=patches,
            left_out=tuple(LeftOut(o.patch.feature, o.reason) for o in planned.omitted),
            generated=dict(old.generated) if old else {},
        )  # fmt: skip

    def _change(self, planned: PlannedStack, old: TreeState | None, new: TreeState) -> TreeChange:
        name = planned.upstream
        generated = {g.path: g.content for g in planned.stack.generated}
        known = dict(old.generated) if old else {}
        change = TreeChange(name, new.kind, new.folder, new.base_commit, None, new.tip_commit, None, generated, known)
        if old is not None:
            return self._with_edits(replace(change, source=old.tip_commit), old.tip_commit)
        tree = Tree(self.workspace, name, new.kind, new.folder)
        if new.kind == "into":
            if not tree.folder.is_dir():
                raise WrongUse(f"--into {name}: there is no folder {tree.folder}")
            return replace(change, source=new.base_commit)
        if tree.folder.is_symlink() or (tree.folder.exists() and any(tree.folder.iterdir())):
            hint = "name another workspace, or patch this folder where it is with --into"
            raise LocalEdits(f"{name} would be written where something else is", [str(tree.folder)], hint=hint)
        return change

    def _back(self, name: str, old: TreeState) -> TreeChange:
        keep = {} if old.kind == "into" else _texts(Tree.of(self.workspace, name, old), old)
        change = TreeChange(
            name,
            old.kind,
            old.folder,
            old.base_commit,
            old.tip_commit,
            old.base_commit,
            None,
            keep,
            dict(old.generated),
        )
        return self._with_edits(change, old.tip_commit)

    def _with_edits(self, change: TreeChange, tip: str) -> TreeChange:
        """Stop at what a person edited, or keep it on a branch of the tree and go on."""
        tree = Tree(self.workspace, change.name, change.kind, change.folder)
        edits = tree.edits(tip)
        head = tree.work.head() if change.kind == "managed" else tip
        if not edits and head == tip:
            return change
        if self.stash:
            branch, tree_id = tree.keep_on_branch(tip)
            self.stashed[change.name] = branch
            return replace(change, stash=tree_id)
        if edits:
            named = [os.fsdecode(tree.folder / os.fsdecode(p)) for p in edits]
            raise LocalEdits(f"{change.name} was edited since it was applied", named, hint=STASH_HINT)
        raise LocalEdits(f"HEAD of {change.name} was moved to {head}", [str(tree.folder)], hint=STASH_HINT)

    def _carry_out(self, journal: Journal, planned: Sequence[PlannedStack]) -> Outcome:
        changed = tuple(c.name for c in journal.changes if c.source != c.target or c.stash or c.forget)
        if self.dry or (self.state == journal.after and not changed):
            return Outcome(journal.after, changed, self.finished, {})
        for stack, change in zip(planned, journal.changes, strict=False):
            self._prepare(stack, change)
        write_journal(self.workspace, journal)
        state = finish(self.workspace, journal)
        return Outcome(state, changed, self.finished, self.stashed)

    def _prepare(self, planned: PlannedStack, change: TreeChange) -> None:
        """Bring every object that the change needs into the tree's own repository. Changes nothing that anyone sees."""
        tree = Tree(self.workspace, change.name, change.kind, change.folder)
        git_dir = tree.git_dir
        if not git_dir.is_dir():
            git_dir = new_git_dir(self.workspace, change.name) if change.kind == "managed" else git_dir
            shutil.rmtree(git_dir, ignore_errors=True)
            create_git_dir(git_dir, change.generated, file_modes=change.kind == "managed")
        import_base(git_dir, planned.base.repo)
        if planned.result.pack is not None:
            copy_pack(planned.result.pack, git_dir / "objects" / "pack")
        if change.kind == "into" and not (git_dir / "index").exists():
            self._check_checkout(tree, change.base, change.generated)

    def _check_checkout(self, tree: Tree, base: str, generated: Mapping[str, str]) -> None:
        """The first time, the owner's files must be those of the pin, all that are there."""
        differing = tree.differences(base)
        if differing:
            shutil.rmtree(tree.git_dir, ignore_errors=True)
            named = [os.fsdecode(tree.folder / os.fsdecode(p)) for p in differing]
            hint = f"`patchctl identify {tree.folder}` says which revision it is"
            raise LocalEdits(
                f"{tree.folder} is not {tree.name} at the pin: {len(named)} files differ", named, hint=hint
            )
        tree.work.write_index(base)


def _at_base(tree: TreeState) -> TreeState:
    return replace(tree, tip_commit=tree.base_commit, tip_tree=tree.base_tree, patches=(), left_out=(), locked=False)


def _texts(tree: Tree, state: TreeState) -> dict[str, str]:
    """The generated files stay when a managed tree goes back to its base: the unpatched package needs them as well."""
    found = {p: tree.folder / p for p in state.generated}
    return {p: f.read_text(encoding="utf-8") for p, f in found.items() if f.is_file()}
