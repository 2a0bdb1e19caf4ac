"""The trees that proofs run on, and the proofs of a run.

Trees are two workspaces, DIR/base and DIR/patched, which must hold exactly what their stacks give.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from patchctl.catalog.evidence import keeps_tests, tests_of
from patchctl.drift.types import ARRIVES, ReleaseDrift, StackDrift
from patchctl.errors import PatchctlError, WrongUse
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.types import Profile, Stack
from patchctl.prove.prove import FeatureOnStack, Prover, Runs, Trees, Verdict, not_carried, on_record, subjects_of
from patchctl.prove.runs import CACHE, Bench, cores
from patchctl.rebase.rebase import copy_distribution, rebase_unattended
from patchctl.scratch import scratch, sweep
from patchctl.source.types import SourceOptions
from patchctl.stack.locking import lock_stack
from patchctl.stack.plan import load_patches, make_plan, select
from patchctl.terminal.progress import Progress
from patchctl.workspace.apply import apply_plan, revert
from patchctl.workspace.current import current_state
from patchctl.workspace.state import WorkspaceState, load_state

MAKE = "patchctl apply --profile PROFILE --release RELEASE --workspace DIR/patched; the same into DIR/base; patchctl revert --workspace DIR/base"


def trees_of(dist: Distribution, folder: Path, check: Callable[[Path], list[str]]) -> Trees:
    """The pair of trees below `folder`. `check` reads a workspace back and returns what is wrong with it.

    Raises WrongUse where one is no workspace, is not as it was written, or the two are not the same stacks: a record would
    name trees that nothing ran on.
    """
    base, patched = (_state(folder / name) for name in ("base", "patched"))
    for name in ("base", "patched"):
        if wrong := check(folder / name):
            more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            hint = f"`patchctl verify --workspace {shlex.quote(str(folder / name))}` says all; apply there again"
            raise WrongUse(f"{folder / name} is not as it was written: {wrong[0]}{more}", hint=hint)
    for upstream, tree in patched.trees.items():
        if Path(tree.folder).name != upstream:
            raise WrongUse(
                f"the tree of {upstream} lies in {tree.folder}; a proof runs on {folder / 'patched' / upstream}"
            )
        other = base.trees.get(upstream)
        if other is None or (other.stack, other.base_commit) != (tree.stack, tree.base_commit) or other.patches:
            what = f"{folder / 'base'} holds no unpatched tree of {upstream} {tree.stack}"
            raise WrongUse(what, hint=f"make both from one profile: {MAKE}")
        dist.stack(upstream, tree.stack)
    stacks = {upstream: tree.stack for upstream, tree in sorted(patched.trees.items())}
    ids = {u: f"{t.stack} {t.form} {t.tip_tree}" for u, t in sorted(patched.trees.items())}
    left_out = {(u, one.feature): one.reason for u, tree in patched.trees.items() for one in tree.left_out}
    return Trees(folder / "base", folder / "patched", stacks, ids, left_out)


def _state(workspace: Path) -> WorkspaceState:
    state = load_state(workspace)
    if state is None or not state.trees:
        raise WrongUse(f"nothing was applied to {workspace}", hint=f"{MAKE}; or leave --trees out, and they are made")
    return state


def profile_of(dist: Distribution, stack: Stack, named: str | None) -> Profile:
    """The profile whose trees are made: `named`, else the first that has the stack with all of its features. Raises WrongUse.

    If none has the stack, as after a rebase, a profile with the stack that it comes from, with this one in its place and without
    the features that require something it lacks: verl/v0.6.1 stands in for v0.6.0. A named profile is not changed like that if
    another profile has the stack.
    """
    if named is not None:
        dist.profile(named)
    profiles = dist.every_profile() if named is None else dist.variants[named]
    has_it = any(p.stacks.get(stack.upstream) == stack.name for p in dist.every_profile())
    names = [name for name in (stack.name, stack.comes_from) if name and (name == stack.name or not (named and has_it))]
    whole = (p for name in names for p in profiles if p.stacks.get(stack.upstream) == name and not p.without)
    found = next(whole, None)
    if found is None:
        whose = f"profile {named}" if named else "no profile"
        word = "lacks" if named else "has"
        what = f"{whose} {word} the stack {stack.upstream}/{stack.name}, with all of its features"
        raise WrongUse(what, hint="trees of a workspace of yours can be named with --trees")
    found = replace(found, stacks={**found.stacks, stack.upstream: stack.name})
    return replace(found, without=[*found.without, *_unmet(dist, found)])


def isolated_profile(dist: Distribution, subject: FeatureOnStack, named: str | None) -> Profile:
    """`profile_of` for one feature: without everything that it does not require, in this stack and in others. Raises WrongUse."""
    profile = profile_of(dist, subject.stack, named)
    patches = {(u, p.feature): p for u, stack in dist.stacks_of(profile).items() for p in load_patches(dist, stack)}
    needed, to_see = set[tuple[str, str]](), [(subject.stack.upstream, subject.feature)]
    while to_see:
        key = to_see.pop()
        if key in patches and key not in needed:
            needed.add(key)
            to_see += [(other or key[0], feature) for feature, other in patches[key].requires]
    return replace(profile, without=[f"{feature}@{upstream}" for upstream, feature in sorted(patches.keys() - needed)])


def one_by_one(
    dist: Distribution, subjects: Iterable[FeatureOnStack], profile: str | None
) -> Iterator[tuple[Profile | None, list[FeatureOnStack]]]:
    """Each subject with the profile of trees that have nothing but what it requires."""
    yield from ((isolated_profile(dist, one, profile), [one]) for one in subjects)


def _unmet(dist: Distribution, profile: Profile) -> list[str]:
    """The features, as FEATURE@UPSTREAM, with a requirement that no stack of the profile has, directly or through others."""
    patches = [(u, p) for u, stack in dist.stacks_of(profile).items() for p in load_patches(dist, stack)]
    out: list[str] = []
    while True:
        there = {(u, p.feature) for u, p in patches}
        lost = [(u, p) for u, p in patches if any((other or u, f) not in there for f, other in p.requires)]
        if not lost:
            return out
        out += [f"{p.feature}@{u}" for u, p in lost]
        patches = [one for one in patches if one not in lost]


def make_trees(dist: Distribution, profile: Profile, folder: Path, options: SourceOptions, progress: Progress) -> None:
    """Apply the profile into folder/patched, and into folder/base, which is reverted. Leaves out what no source has.

    Raises what `apply` raises.
    """
    for name in ("patched", "base"):
        workspace = folder / name
        chosen = select(dist, profile, ())
        there = current_state(workspace, dist, {})
        without = profile.without  # the state says what was chosen here, which the profile's own file may not
        plan = make_plan(dist, chosen, options, progress, without=without, skip_unavailable=True, current=there)
        progress.start(f"{name} trees", None)
        apply_plan(workspace, plan, dist.root, {}, stash=False)
    revert(folder / "base", stash=False)


def check_provable(dist: Distribution) -> None:
    """Raise WrongUse where there is nothing to run tests with."""

    if not keeps_tests(dist.root):
        raise WrongUse("no feature of the distribution has a folder tests/", hint="it has its tests elsewhere, or none")
    if find_spec("pytest") is None:
        raise WrongUse("pytest is not installed beside patchctl", hint=f"`{sys.executable} -m pip install pytest`")


def by_profile(
    dist: Distribution, subjects: Sequence[FeatureOnStack], profile: str | None, folder: Path | None
) -> Iterator[tuple[Profile | None, list[FeatureOnStack]]]:
    """The subjects that share trees. Those that lie in DIR are of whatever profile they were made from."""
    if folder is not None and (folder / "patched").exists():
        yield None, list(subjects)
        return
    groups: dict[str, tuple[Profile, list[FeatureOnStack]]] = {}
    for subject in subjects:
        found = profile_of(dist, subject.stack, profile)
        groups.setdefault(repr(found), (found, []))[1].append(subject)
    if folder is not None and len(groups) > 1:
        several = [one for one, _ in groups.values()]
        named = ", ".join(f"{one.name} on {one.release}" if one.release else one.name for one in several)
        hint = f"take one: {' or '.join(f'`{one.options}`' for one in several)}; or leave --trees out"
        raise WrongUse(f"these stacks are in {len(groups)} profiles: {named}", hint=hint)
    yield from groups.values()


@dataclass(frozen=True)
class Ground:
    """Where proofs run: on the trees in `folder`, or on those of temporary ones. `check` reads a workspace back and returns what is
    wrong with it."""

    dist: Distribution
    folder: Path | None
    options: SourceOptions
    progress: Progress
    check: Callable[[Path], list[str]]

    @contextmanager
    def trees(self, profile: Profile | None) -> Iterator[Trees]:
        """The trees of the profile: made, where it is not None."""
        with scratch("patchctl-prove-") as temporary:
            place = (self.folder or temporary).absolute()
            if profile is not None:
                make_trees(self.dist, profile, place, self.options, self.progress)
            trees = trees_of(self.dist, place, self.check)
            self.progress.finish()
            yield trees


def prove_all(
    ground: Ground,
    groups: Iterable[tuple[Profile | None, list[FeatureOnStack]]],
    how: Runs,
    tell: Callable[[Verdict], None],
) -> list[Verdict]:
    """Prove features, those that share trees together; `tell` is told each verdict at once. Makes no trees where records show all."""
    for prefix in ("patchctl-prove-", "patchctl-proof-", CACHE):  # also where every record holds, and no tree is made
        sweep(prefix)
    progress, dist = ground.progress, ground.dist
    known = how.keep and not how.rerun and ground.folder is None  # trees that someone names are looked at
    verdicts: list[Verdict] = []
    for made_from, some in groups:
        with ExitStack() as open_:
            prover = None
            shown = [on_record(dist, one, how.parts) if known else None for one in some]
            for subject, verdict in zip(some, shown, strict=True):
                if verdict is None:
                    if prover is None:
                        trees = open_.enter_context(ground.trees(made_from))
                        prover = Prover(dist, trees, how, open_.enter_context(scratch(CACHE)))
                    progress.start(f"{subject.stack.upstream} {subject.feature}", None)
                    verdict = prover.prove(subject, progress.note)
                    progress.finish()
                verdicts.append(verdict)
                tell(verdict)
    return verdicts


def debug_one(ground: Ground, subjects: Sequence[FeatureOnStack], test: str, profile: str | None) -> bool:
    """Run the tests of one feature that `test` selects (pytest -k), with their output here; whether they are green. Raises WrongUse."""
    if len(subjects) != 1:
        raise WrongUse(
            "--debug takes the tests of one feature", hint="name it as FEATURE@UPSTREAM, with --stack if two have it"
        )
    (subject,) = subjects
    ((made_from, _),) = by_profile(ground.dist, subjects, profile, ground.folder)
    with ground.trees(made_from) as trees, scratch(CACHE) as cache:
        bench = Bench.of(ground.dist.root, trees.stacks, cache)
        on = trees.base if subject.dropped else trees.patched
        return not bench.debug(tests_of(ground.dist, subject.stack, subject.feature), test, on)


def prove_stack(
    ground: Ground, stack: Stack, tell: Callable[[Verdict], None], only: Container[tuple[str, str]] | None = None
) -> list[Verdict]:
    """Prove every feature of one stack on trees made for it, and whether upstream meets the need of each that it dropped; or those
    that `only` names, by upstream and feature, of the other stacks of these trees too, and whatever records show. Raises what
    `apply` raises."""
    dist = ground.dist
    profile = profile_of(dist, stack, None)
    stacks = dist.stacks_of(profile).values() if only is not None else [stack]
    subjects = [s for one in stacks for s in subjects_of(dist, (), one)]
    chosen = [s for s in subjects if only is None or (s.stack.upstream, s.feature) in only]
    chosen += not_carried(dist, stack, stack.dropped) if only is None else []
    how = Runs(rerun=only is not None, jobs=cores())
    return prove_all(ground, [(profile, chosen)], how, tell)


def proven_on(
    drift: StackDrift,
    release: ReleaseDrift,
    dist: Distribution,
    options: SourceOptions,
    progress: Progress,
    ground_in: Callable[[Path], Ground],
    tell: Callable[[Verdict], None],
) -> ReleaseDrift:
    """A release with what tests say, where something arrives that no record proves; they run in a copy of the distribution, for whose root
    `ground_in` gives the ground. What keeps tests from being run is said of every patch, since the rest of the matrix is there."""
    arriving = {(drift.upstream, p.feature) for p in release.patches if not p.clean and p.state in ARRIVES}
    wanted = arriving | {(c.upstream, c.feature) for c in release.callers if c.proof is not None}
    if not wanted:
        return release
    said = dict[tuple[str, str], tuple[str | None, bool]]()
    try:
        with scratch("patchctl-drift-") as folder:
            root = copy_distribution(dist.root, folder)
            copy = Distribution.load(root)
            old = copy.stack(drift.upstream, drift.stack)
            new = rebase_unattended(copy, old, release.release, folder, options, progress)
            ground = ground_in(root)  # its distribution has the new stack
            lock_stack(ground.dist, new, options, progress, check=False)
            said = {(drift.upstream, f): (why, False) for f, why in new.postponed.items()}
            for one in prove_stack(ground, new, tell, wanted):
                done = one.status == "proven"
                said[one.upstream, one.feature] = None if done else one.reasons[0], not done and one.broken
        other = "it did not come along"
    except PatchctlError as error:
        other = f"nothing could be proven: {error}"
    finally:
        progress.finish()

    def told(key: tuple[str, str]) -> dict[str, Any]:
        proof, broken = said.get(key, (other, False))
        return {"proof": proof, "broken": broken}

    patches = tuple(
        replace(p, **told(k)) if (k := (drift.upstream, p.feature)) in wanted else p for p in release.patches
    )
    callers = tuple(replace(c, **told(k)) if (k := (c.upstream, c.feature)) in wanted else c for c in release.callers)
    return replace(release, patches=patches, callers=callers)
