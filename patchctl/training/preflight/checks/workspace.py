"""Whether the patched trees are those of the profile, and equal to the lock."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from patchctl.findings.report import Finding, looked_at
from patchctl.manifest.types import profile_options
from patchctl.terminal.text import abridged
from patchctl.training.preflight import machine as m
from patchctl.training.preflight.case import Case
from patchctl.training.preflight.tool_output import records


def check_workspace(case: Case) -> Iterator[Finding]:
    """What `patchctl status` says of the workspace that the recipe is started in."""
    state = case.machine.data(m.WORKSPACE)
    apply = f"patchctl apply {profile_options(case.run.profile, case.run.release)} --workspace"
    if not isinstance(state, dict):
        known = case.machine.known_to_lack(m.WORKSPACE)
        what = case.machine.why_not(m.WORKSPACE)
        yield looked_at(
            "workspace", "workspace", "error" if known else "unknown", what, f"{apply} DIR, then --workspace DIR here"
        )
        return
    place = str(state.get("workspace"))
    apply = f"{apply} {shlex.quote(place)}"
    yield from _profile(case, state, place, apply)
    trees = records(state.get("trees"))
    for tree in trees:
        yield _tree(tree, apply)
    yield from _imports(case, state, trees)
    for skipped in records(state.get("skipped")):
        what = "its source could not be had when the patches were applied"
        yield looked_at("workspace", str(skipped.get("upstream")), "warning", what, f"{apply} where it can be had")
    if place.startswith("/home/"):
        what = f"{place} lies below /home: a vLLM server that is started there fails on its paths (003, 4.8)"
        yield looked_at(
            "workspace", "place", "warning", what, "start a server for evaluation from elsewhere", needed=False
        )


def _profile(case: Case, state: Mapping[str, Any], place: str, apply: str) -> Iterator[Finding]:
    profile, interrupted = state.get("profile"), state.get("interrupted")
    if interrupted:
        yield looked_at(
            "workspace", "workspace", "error", f"{place}: an interrupted {interrupted}", f"{apply} finishes it"
        )
    elif profile != case.run.profile and case.stacks and case.stacks.items() <= _stacks(state).items():
        what = f"{place} holds {profile}, which has the stacks of {case.run.profile}"
        yield looked_at("workspace", "workspace", "ok", what)
    elif profile != case.run.profile:
        what = f"{place} holds {profile or 'the unpatched trees'}, not {case.run.profile}"
        yield looked_at("workspace", "workspace", "error", what, apply)
    elif other := _other_stack(case, state):
        held = f" (release {state['release']})" if state.get("release") else ""
        what = f"{place} holds {profile} with {other}{held}; the recipe is for release {case.run.release}"
        todo = f"{apply}, or the recipe with --release of the workspace"
        yield looked_at("workspace", "workspace", "error", what, todo)
    else:
        yield looked_at("workspace", "workspace", "ok", f"{place} holds {profile}")
    needed = {feature.partition("@")[0] for feature in case.run.needs}
    lacking = sorted(needed & set(_features_left_out(state)))
    if lacking:
        what = f"the recipe needs {', '.join(lacking)}, which the workspace leaves out"
        yield looked_at("workspace", "features", "error", what, f"{apply} without --without")


def _other_stack(case: Case, state: Mapping[str, Any]) -> str | None:
    """A tree whose stack is not that of the profile on the recipe's release."""
    trees = records(state.get("trees"))
    stacks = {str(tree.get("upstream")): str(tree.get("stack")) for tree in trees}
    return next((f"{u} {s}" for u, s in stacks.items() if case.stacks and case.stacks.get(u, s) != s), None)


def _stacks(state: Mapping[str, Any]) -> dict[str, str]:
    """The patched trees' stacks, by upstream; those that were skipped are told of elsewhere."""
    return {
        str(tree.get("upstream")): str(tree.get("stack")) for tree in records(state.get("trees")) if tree.get("patches")
    }


def _features_left_out(state: Mapping[str, Any]) -> list[str]:
    rows = [row for tree in records(state.get("trees")) for row in records(tree.get("left_out"))]
    without = state.get("without")
    return [*(map(str, without) if isinstance(without, list) else ()), *(str(row.get("feature")) for row in rows)]


def _tree(tree: Mapping[str, Any], apply: str) -> Finding:
    name = str(tree.get("upstream"))
    faults = [str(tree["problem"])] if tree.get("problem") else []
    edits = [str(path) for path in tree["edits"]] if isinstance(tree.get("edits"), list) else []
    if edits:
        faults.append(f"changed since: {abridged(edits, 4)}")
    lock = str(tree.get("lock"))
    if lock not in ("equal", "silent"):
        faults.append(lock)
    if faults:
        todo = f"{apply} (--stash keeps edits); a run is only as reproducible as its trees"
        return looked_at("workspace", name, "error", "; ".join(faults), todo)
    what = f"{tree.get('stack')}, {len(records(tree.get('patches')))} patches"
    if lock == "silent":
        return looked_at("workspace", name, "ok", f"{what}; the lock does not speak of this form")
    return looked_at("workspace", name, "ok", f"{what}, equal to the lock")


def _imports(case: Case, state: Mapping[str, Any], trees: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Which trees the Python of training imports. That which training is started in comes before all others, in Ray's
    workers too, so that it need not be on any path."""
    python, place = str(state.get("python") or "PYTHON"), str(state.get("workspace"))
    if state.get("not_asked"):
        todo = "--python PY: the Python that trains"
        yield looked_at("workspace", "imports", "unknown", str(state["not_asked"]), todo)
        return
    asked = [tree for tree in trees if isinstance(tree.get("imports"), list) and tree["imports"]]
    elsewhere = [
        f"{row.get('package')} from {row.get('place') or 'nowhere'}"
        + (f" ({row['error']})" if row.get("error") else "")
        for tree in asked
        if not _started_in(case, tree)
        for row in records(tree["imports"])
        if not row.get("ours")
    ]
    if elsewhere:
        folders = ":".join(str(tree.get("folder") or f"{place}/{tree.get('upstream')}") for tree in asked)
        todo = (
            f"patchctl install --workspace {shlex.quote(place)} --python {shlex.quote(python)}, or export"
            f" PYTHONPATH={shlex.quote(folders)} before Ray and training start (--workspace of ray_cluster.sh and train.sh does)"
        )
        yield looked_at("workspace", "imports", "error", f"{python} imports {', '.join(elsewhere)}", todo)
    elif asked:
        yield looked_at("workspace", "imports", "ok", f"{python} imports the patched trees")


def _started_in(case: Case, tree: Mapping[str, Any]) -> bool:
    return tree.get("upstream") == case.run.entry.upstream and case.run.entry.folder in (None, ".")
