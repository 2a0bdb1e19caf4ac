"""The patches of a stack on a release, in a copy of the distribution: what arrives by itself is rebased there, and can be proven,
and the distribution stays as it is."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from patchctl.errors import WrongUse
from patchctl.maintain.rebase import go_on, skip
from patchctl.maintain.rebase_begin import Wish, begin
from patchctl.maintain.rebase_end import end
from patchctl.maintain.rebase_run import Run
from patchctl.maintain.rebase_state import State, alone, write_state
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.types import Stack
from patchctl.source.types import SourceOptions
from patchctl.stack.plan import load_patches
from patchctl.terminal.progress import Progress

# What is hidden is no part of a distribution, nor is what was built of it.
_NOT_COPIED = shutil.ignore_patterns(".*", "build", "edit", "__pycache__", "*.egg-info")
LOST = "it does not arrive by itself"


def copy_distribution(root: Path, folder: Path) -> Path:
    """All that a proof may run on. Returns where it lies."""
    return Path(shutil.copytree(root, folder / "distribution", symlinks=True, ignore=_NOT_COPIED))


def rebase_alone(
    dist: Distribution, old: Stack, release: str, folder: Path, options: SourceOptions, progress: Progress
) -> Stack:
    """The new stack in `dist`, with whatever arrives without a person, and what requires nothing else; the rest is postponed
    there, with the reason. `folder` is for the work tree. Raises what a rebase raises."""
    own = dist.stacks.get((old.upstream, release))
    if own is not None and own.patches:
        hint = f"`patchctl prove --all --stack {own.upstream}/{own.name}`"
        raise WrongUse(f"the distribution has patches for {own.upstream}/{own.name}", hint=hint)
    requires = {p.feature: {f for f, u in p.requires if u in (None, old.upstream)} for p in load_patches(dist, old)}
    wish = Wish(old, release, None, folder / "tree", None, True, None)
    run, state = begin(dist, wish, options, progress)
    with alone(run.place.hidden):
        state = go_on(run, state)
        while state.stop is not None:
            state = _without(run, skip(run, state, LOST, "postponed"), requires)
            state = go_on(run, state)
        return end(run, state).stack


def _without(run: Run, state: State, requires: dict[str, set[str]]) -> State:
    """The state with what requires something that does not arrive postponed, too."""
    later = dict(state.postponed)
    for feature, _ in state.todo:
        if lost := sorted(requires[feature] & later.keys()):
            later[feature] = f"requires {lost[0]}, which does not arrive"
    todo = tuple(one for one in state.todo if one[0] not in later)
    return write_state(run.place.hidden, replace(state, todo=todo, postponed=later))
