"""Whether a workspace holds what its profile names now: the distribution may have moved on since the apply, and a state may have been
edited."""

from __future__ import annotations

import os
from pathlib import Path

from patchctl.manifest.distribution import Distribution
from patchctl.workspace.state import State, TreeState


def in_profile(tree: TreeState) -> bool:
    """Whether the applied profile has this tree. What only another one had stays, at its base: nothing installs it."""
    return bool(tree.patches) or tree.locked or tree.tip_commit != tree.base_commit


def _has_patches(dist: Distribution, upstream: str, stack: str) -> bool:
    known = dist.stacks.get((upstream, stack))
    return known is not None and bool(dist.patches(known))


def unlike_profile(workspace: Path, state: State, dist: Distribution) -> dict[str, str]:
    """The upstreams of which the workspace does not hold what the profile of its state names now, each with the reason.

    What was taken back to its base is as it should be, and so is what could not be had.
    """
    if state.profile is None:
        return {}
    profile = dist.held(state.profile, state.release)
    if profile is None:
        where = f" of the release {state.release}" if state.release else ""
        what = f"the distribution has no profile {state.profile}{where}"
        return {name: what for name, tree in state.trees.items() if in_profile(tree)}
    found = {}
    for name, tree in state.trees.items():
        stack = profile.stacks.get(name)
        if stack is None and in_profile(tree):
            found[name] = f"the profile {profile.name} does not name it, and the tree is not at its base"
        elif stack not in (None, tree.stack):
            found[name] = f"the profile {profile.name} names its stack {stack}, and the tree is of {tree.stack}"
        elif stack is not None and not in_profile(tree) and not tree.left_out and _has_patches(dist, name, stack):
            found[name] = f"the profile {profile.name} names it, and the tree is at its base"
    skipped = {one.upstream for one in state.skipped}
    for name in sorted(profile.stacks.keys() - state.trees.keys()):
        if name not in skipped:
            found[name] = f"the profile {profile.name} names it, and the state has no tree of it"
        elif os.path.lexists(workspace / name):
            found[name] = "its source could not be had, says the state, and a tree lies here"
    return found
