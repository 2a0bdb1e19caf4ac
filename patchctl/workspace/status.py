"""The current contents of a workspace, also as image labels. Takes no lock and writes nothing, so it works read-only
and for other users.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from patchctl import __version__
from patchctl.doc import Doc
from patchctl.errors import GitKilled, PatchctlError, WrongUse
from patchctl.git.run import GitRefused
from patchctl.language import message
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.lock import lock_digest, read_lock
from patchctl.manifest.types import Profile
from patchctl.os_errors import is_resource_error
from patchctl.workspace.checks import edits_in, marks_in, operation_in
from patchctl.workspace.imports import Import, find_imports
from patchctl.workspace.journal import read_journal
from patchctl.workspace.pip_record import record_is_ours
from patchctl.workspace.state import (
    AppliedPatch,
    LeftOutFeature,
    SkippedUpstream,
    TreeState,
    WorkspaceState,
    in_profile,
    load_state,
)
from patchctl.workspace.trees import Tree

DIFFERS = message("differs from the lock: apply again")


@dataclass(frozen=True)
class TreeStatus:
    """The status of one tree."""

    upstream: Annotated[str, Doc("upstream name")]
    kind: Annotated[str, Doc("`managed` or `into`")]
    folder: Annotated[str, Doc("absolute path of the tree")]
    stack: Annotated[str, Doc("stack name")]
    form: Annotated[str, Doc("source form: `git` or `sdist`")]
    pin: Annotated[
        str, Doc("pinned commit; `sdist:SHA256` if only the source distribution is pinned; `unknown` if undetermined")
    ]
    base_commit: Annotated[str, Doc("unpatched base commit")]
    tip_commit: Annotated[str, Doc("commit of the last patch")]
    tip_tree: Annotated[str, Doc("tree id of the tip commit")]
    patches: Annotated[tuple[AppliedPatch, ...], Doc("patches, in the order applied")]
    left_out: Annotated[tuple[LeftOutFeature, ...], Doc("features not in the tree")]
    edits: Annotated[tuple[str, ...], Doc("files changed since the apply")]
    lock: Annotated[
        str,
        Doc("`equal`, `silent` (the lock does not cover this form and selection), or a description of the difference"),
    ]
    problem: Annotated[str | None, Doc("why the tree cannot be checked, or a note that HEAD was moved")]
    imports: Annotated[
        tuple[Import, ...], Doc("with `--python`: how that Python resolves the packages; null otherwise")
    ]
    differing: Annotated[
        tuple[str, ...], Doc("files of the base that are not the pin's, with `apply --on-this-base`")
    ] = ()
    unlike_profile: Annotated[
        str | None, Doc("set if the profile now names another stack, or no longer this upstream")
    ] = None

    @property
    def as_applied(self) -> bool:
        """Whether the tree is what the lock and the profile say, without edits."""
        return self.lock in ("equal", "silent") and not (self.edits or self.problem or self.unlike_profile)

    @property
    def uninstalled(self) -> bool:
        """Whether it was a package that pip has taken away since."""
        return self.problem is not None and self.problem.startswith("it is no longer installed there: ")

    @property
    def clean(self) -> bool:
        """As `as_applied`, and Python imports it if checked."""
        return self.as_applied and all(one.ours for one in self.imports)


@dataclass(frozen=True)
class Status:
    """The status of a workspace."""

    workspace: Annotated[str, Doc("workspace path")]
    profile: Annotated[str | None, Doc("profile name; null after `revert` or an interrupted first `apply`")]
    without: Annotated[tuple[str, ...], Doc("features left out with `--without`")]
    interrupted: Annotated[str | None, Doc("verb of a run that was killed; null if there was none")]
    trees: Annotated[tuple[TreeStatus, ...], Doc("trees, sorted by name")]
    skipped: Annotated[tuple[SkippedUpstream, ...], Doc("upstreams unavailable at the apply")]
    release: Annotated[
        str | None, Doc("release that was applied; null if the profile has none, or if an earlier patchctl applied it")
    ] = None
    lacking: Annotated[
        Mapping[str, str],
        Doc("upstreams without a tree, with the reason to expect one: the profile names it, or its folder exists"),
    ] = field(default_factory=dict)
    labels: Annotated[
        Mapping[str, str] | None,
        Doc(
            "with `--labels`: the image labels; `patchctl.lock` is a sha256 over the lock files of the stacks present,"
            " `patchctl.skipped` lists the profile's other upstreams",
            optional=True,
        ),
    ] = None

    @property
    def clean(self) -> Annotated[bool, Doc("true for exit code 0")]:
        """Whether there are no edits, differences to profile or lock, or interrupted run, and Python imports these
        trees if checked.

        A profile without a single tree is not clean: it cannot train anything.
        """
        right = all(tree.clean for tree in self.trees) and not self.lacking
        return right and (self.profile is None or bool(self.trees)) and self.interrupted is None


def read_status(workspace: Path, dist: Distribution | None, python: str | None) -> Status:
    """Inspect every tree. `dist` is None without a distribution: locks are not checked then."""
    state = load_state(workspace)
    journal = read_journal(workspace)
    if state is None:
        if journal is None:
            what = message("nothing was applied to {workspace}", workspace=workspace)
            raise WrongUse(what, hint=message("name the workspace with --workspace DIR"))
        return Status(str(workspace), None, (), journal.verb, (), ())
    asked = {name: python if state.profile is None or in_profile(tree) else None for name, tree in state.trees.items()}
    unlike = unlike_profile(workspace, state, dist) if dist is not None else {}
    trees = tuple(
        _tree(workspace, name, tree, dist, asked[name], unlike.pop(name, None))
        for name, tree in sorted(state.trees.items())
    )
    interrupted = journal.verb if journal else None
    return Status(
        str(workspace), state.profile, state.without, interrupted, trees, state.skipped, state.release, unlike
    )


def _tree(
    workspace: Path, name: str, state: TreeState, dist: Distribution | None, python: str | None, unlike: str | None
) -> TreeStatus:
    tree = Tree.of(workspace, name, state)
    problem: str | None = None
    edits: tuple[str, ...] = ()
    try:
        found = {
            *edits_in(tree, state.tip_commit, marks_in(tree)),
            *tree.brought_back_or_gone(state.base_commit, state.tip_commit),
        }
        edits = tuple(map(os.fsdecode, sorted(found)))
        if tree.uninstalled:
            problem = message(
                "it is no longer installed there: {record} is gone; `patchctl revert` forgets it", record=state.record
            )
        elif state.record and not record_is_ours(tree, state.base_commit, state.tip_commit, state.generated):
            edits = (*edits, state.record)
        head = tree.work.head() if state.kind == "managed" else state.tip_commit
        operation = operation_in(tree)
        if operation is not None:
            problem = message("{name} is in progress: {todo}", name=operation.name, todo=operation.way_out)
        elif head != state.tip_commit:
            problem = message("HEAD is {head}, not the stack's last commit", head=head)
        elif tree.is_link:
            problem = message("the folder is a link, to {target}", target=os.readlink(tree.folder))
    except (PatchctlError, OSError) as error:
        if isinstance(error, GitKilled | GitRefused) or is_resource_error(error):  # unrelated to the tree
            raise
        problem = message("cannot be read: {error}", error=error)
    tip = None if problem else lambda: tree.files(state.tip_commit)
    imports = find_imports(python, name, tree.folder, dist, tip) if python and dist else ()
    return TreeStatus(
        upstream=name,
        kind=state.kind,
        folder=str(tree.folder),
        stack=state.stack,
        form=state.form,
        pin=_pin(dist, name, state),
        base_commit=state.base_commit,
        tip_commit=state.tip_commit,
        tip_tree=state.tip_tree,
        patches=state.patches,
        left_out=state.left_out,
        edits=edits,
        lock=_lock(dist, name, state),
        problem=problem,
        imports=imports,
        differing=state.differing,
        unlike_profile=message("{what}: apply again", what=unlike) if unlike else None,
    )


def _pin(dist: Distribution | None, name: str, state: TreeState) -> str:
    if dist is not None and (name, state.stack) in dist.stacks:
        return dist.stacks[name, state.stack].pin.identity
    return state.base_commit if state.form == "git" else "unknown"


def _lock(dist: Distribution | None, name: str, state: TreeState) -> str:
    """Compare the tree's tip with the lock as it is now: the distribution may have changed since the apply."""
    if dist is None or not (state.patches or state.locked):  # at its base, after a revert
        return "silent"
    if state.differing:
        return "silent"
    if (name, state.stack) not in dist.stacks:
        return message("the distribution has no stack {stack} any more", stack=state.stack)
    lock = read_lock(dist.root, dist.stacks[name, state.stack])
    expected = lock.expected(state.form, frozenset(o.feature for o in state.left_out)) if lock else None
    if expected is None:
        return "silent"
    return "equal" if expected.tip_commit == state.tip_commit else DIFFERS


def labels(status: Status, dist: Distribution) -> dict[str, str]:
    """Return the labels of an image with this workspace, sorted by name.

    `patchctl.lock` is patchctl.manifest.lock.lock_digest over the stacks of these trees; `patchctl.tree.UPSTREAM` is
    `FORM:TREE` for each, TREE being git's id of the patched tree; `patchctl.base.UPSTREAM` is the base's commit where it is not
    the pin's; `patchctl.without` lists the features that any of
    them lacks, and `patchctl.skipped` the profile's other upstreams. So a subset of the trees, or of their patches,
    never has the labels of all.

    Raises WrongUse if no profile is applied, or if the workspace differs from its lock, which would make the labels
    false.
    """
    if status.profile is None:
        what = message("no profile is applied here")
        raise WrongUse(what, where=status.workspace, hint=message("`patchctl apply` first"))
    if not status.clean:
        raise WrongUse(
            message("the workspace is not as it should be, and labels would say that it is"),
            where=status.workspace,
            hint=message("`patchctl status` names what is not"),
        )
    profile = dist.held(status.profile, status.release) or dist.profile(status.profile)
    skipped = {one.upstream for one in status.skipped}
    held = [t for t in status.trees if t.upstream in profile.stacks and t.upstream not in skipped and _applied(t)]
    trees = {tree.upstream: tree for tree in held}
    found = {"patchctl.version": __version__, "patchctl.profile": status.profile}
    found |= labels_of_profile(dist, profile, trees) | labels_of_trees(status.without, trees)
    return dict(sorted(found.items()))


def labels_of_profile(
    dist: Distribution, profile: Profile, trees: Mapping[str, TreeStatus | TreeState]
) -> dict[str, str]:
    """Return the labels that depend on the distribution, for these trees by upstream. Raises WrongUse for a stack that it lacks."""
    stacks = [dist.stack(upstream, tree.stack) for upstream, tree in trees.items()]
    return {
        "patchctl.release": profile.release or "",
        "patchctl.lock": lock_digest(dist.root, stacks) or "",
        "patchctl.skipped": ",".join(sorted(profile.stacks.keys() - trees.keys())),
    }


def labels_of_trees(without: Sequence[str], trees: Mapping[str, TreeStatus | TreeState]) -> dict[str, str]:
    """Return the labels that say what these trees are, by upstream."""
    lacking = {one.feature for tree in trees.values() for one in tree.left_out}
    found = {"patchctl.without": ",".join(sorted({*without, *lacking}))}
    found |= {f"patchctl.tree.{upstream}": f"{tree.form}:{tree.tip_tree}" for upstream, tree in trees.items()}
    found |= {f"patchctl.base.{upstream}": tree.base_commit for upstream, tree in trees.items() if tree.differing}
    return found


def _applied(tree: TreeStatus) -> bool:
    """Whether this profile's apply made the tree. A tree that only an earlier profile had is at its base, without a lock."""
    return bool(tree.patches or tree.left_out) or tree.lock == "equal"


def unlike_profile(workspace: Path, state: WorkspaceState, dist: Distribution) -> dict[str, str]:
    """Return the upstreams whose tree is not what the state's profile names now, with the reason.

    The distribution may have changed since the apply, and a state may have been edited. Trees reverted to their base
    and upstreams without a source are fine.
    """
    if state.profile is None:
        return {}
    profile = dist.held(state.profile, state.release)
    if profile is None:
        what = message("the distribution has no profile {profile}", profile=state.profile)
        if state.release:
            what = message("{what} of the release {release}", what=what, release=state.release)
        return {name: what for name, tree in state.trees.items() if in_profile(tree)}
    found = dict[str, str]()
    for name, tree in state.trees.items():
        stack = profile.stacks.get(name)
        if stack is None and in_profile(tree):
            found[name] = message(
                "the profile {profile} does not name it, and the tree is not at its base", profile=profile.name
            )
        elif stack not in (None, tree.stack):
            found[name] = message(
                "the profile {profile} names its stack {stack}, and the tree is of {other}",
                profile=profile.name,
                stack=stack,
                other=tree.stack,
            )
        elif stack is not None and not in_profile(tree) and _has_patches(dist, name, stack):
            found[name] = message("the profile {profile} names it, and the tree is at its base", profile=profile.name)
    skipped = {one.upstream for one in state.skipped}
    for name in sorted(profile.stacks.keys() - state.trees.keys()):
        if name not in skipped:
            found[name] = message(
                "the profile {profile} names it, and the state has no tree of it", profile=profile.name
            )
        elif os.path.lexists(workspace / name):
            found[name] = message("its source could not be had, says the state, and a tree lies here")
    return found


def _has_patches(dist: Distribution, upstream: str, stack: str) -> bool:
    known = dist.stacks.get((upstream, stack))
    return known is not None and bool(dist.patches(known))
