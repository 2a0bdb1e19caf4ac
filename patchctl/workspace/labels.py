"""What a workspace holds, as labels of an image: profile, lock, and a tree for each upstream."""

from __future__ import annotations

from patchctl import __version__
from patchctl.errors import WrongUse
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.lock import lock_digest
from patchctl.workspace.status import Status, TreeStatus


def labels(status: Status, dist: Distribution) -> dict[str, str]:
    """Names and values, sorted: `patchctl.lock` is patchctl.manifest.lock.lock_digest over the stacks whose trees are
    here, `patchctl.tree.UPSTREAM` is `FORM:TREE`, where TREE is git's id of the patched tree, for each of them,
    `patchctl.without` names the features that one of them lacks, for whatever reason, and `patchctl.skipped` the profile's
    other upstreams. So a part of the trees, or of their patches, never has the labels of all.

    Raises WrongUse when the workspace holds no profile, or not what its lock says: a label would then be untrue.
    """
    if status.profile is None:
        raise WrongUse("no profile is applied here", where=status.workspace, hint="`patchctl apply` first")
    if not status.clean:
        raise WrongUse(
            "the workspace is not as it should be, and labels would say that it is",
            where=status.workspace,
            hint="`patchctl status` names what is not",
        )
    profile = dist.held(status.profile, status.release) or dist.profile(status.profile)
    skipped = {one.upstream for one in status.skipped}
    held = [t for t in status.trees if t.upstream in profile.stacks and t.upstream not in skipped and _applied(t)]
    lacking = {one.feature for tree in held for one in tree.left_out}
    stacks = [dist.stack(tree.upstream, tree.stack) for tree in held]
    found = {
        "patchctl.version": __version__,
        "patchctl.profile": status.profile,
        "patchctl.release": profile.release or "",
        "patchctl.without": ",".join(sorted({*status.without, *lacking})),
        "patchctl.lock": lock_digest(dist.root, stacks) or "",
        "patchctl.skipped": ",".join(sorted(profile.stacks.keys() - {tree.upstream for tree in held})),
    }
    found |= {f"patchctl.tree.{tree.upstream}": f"{tree.form}:{tree.tip_tree}" for tree in held}
    return dict(sorted(found.items()))


def _applied(tree: TreeStatus) -> bool:
    """Whether the apply made this tree: one that only another profile had is at its base, and the lock says nothing of it."""
    return bool(tree.patches or tree.left_out) or tree.lock == "equal"
