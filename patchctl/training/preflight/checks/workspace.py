"""Whether the patched trees are those of the profile, and equal to the lock."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from patchctl.findings import Finding, looked_at
from patchctl.language import Translatable, joined, message
from patchctl.manifest.types import profile_options
from patchctl.terminal.text import abridged, patch_count
from patchctl.training.preflight import machine as m
from patchctl.training.preflight.case import Case
from patchctl.workspace.status import DIFFERS


def check_workspace(case: Case) -> Iterator[Finding]:
    """What `patchctl status` says of the workspace that the recipe is started in."""
    state = case.machine.data(m.WORKSPACE)
    apply = f"patchctl apply {profile_options(case.run.profile, case.run.release)} --workspace"
    if not isinstance(state, dict):
        known = case.machine.known_to_lack(m.WORKSPACE)
        what = case.machine.why_not(m.WORKSPACE)
        todo = message("run {apply} DIR, then name it here with --workspace DIR", apply=apply)
        yield looked_at("workspace", "workspace", "error" if known else "unknown", what, todo)
        return
    place = str(state.get("workspace"))
    apply = f"{apply} {shlex.quote(place)}"
    trees = m.records(state.get("trees"))
    yield from _profile(case, state, trees, place, apply)
    for tree in trees:
        yield _tree(tree, apply)
    yield from _imports(case, state, trees)
    for skipped in m.records(state.get("skipped")):
        what = message("its source could not be had when the patches were applied")
        todo = message("where it can be had, run {apply}", apply=apply)
        yield looked_at("workspace", str(skipped.get("upstream")), "warning", what, todo)
    if place.startswith("/home/"):
        what = message("{place} lies below /home: a vLLM server that is started there fails on its paths", place=place)
        todo = message("start a server for evaluation from elsewhere")
        yield looked_at("workspace", "place", "warning", what, todo, needed=False)


def _profile(
    case: Case, state: Mapping[str, Any], trees: Sequence[Mapping[str, Any]], place: str, apply: str
) -> Iterator[Finding]:
    profile, interrupted = state.get("profile"), state.get("interrupted")
    other = next((f"{u} {s}" for u, s in _stacks(trees).items() if case.stacks.get(u, s) != s), None)
    patched = _stacks(tree for tree in trees if tree.get("patches"))  # those that were skipped are told of elsewhere
    if interrupted:
        what = message("{place}: an interrupted {verb}", place=place, verb=interrupted)
        yield looked_at("workspace", "workspace", "error", what, message("run {apply}, which finishes it", apply=apply))
    elif profile != case.run.profile and case.stacks and case.stacks.items() <= patched.items():
        what = message(
            "{place} holds {profile}, which has the stacks of {wanted}",
            place=place,
            profile=profile,
            wanted=case.run.profile,
        )
        yield looked_at("workspace", "workspace", "ok", what)
    elif profile != case.run.profile:
        held = profile or message("the unpatched trees")
        what = message("{place} holds {held}, not {wanted}", place=place, held=held, wanted=case.run.profile)
        yield looked_at("workspace", "workspace", "error", what, apply)
    elif other:
        if state.get("release"):
            other = message("{stack} (release {release})", stack=other, release=state["release"])
        what = message(
            "{place} holds {profile} with {stack}; the recipe is for release {release}",
            place=place,
            profile=profile,
            stack=other,
            release=case.run.release,
        )
        todo = message("run {apply}, or take the recipe with --release of the workspace", apply=apply)
        yield looked_at("workspace", "workspace", "error", what, todo)
    else:
        yield looked_at(
            "workspace", "workspace", "ok", message("{place} holds {profile}", place=place, profile=profile)
        )
    without = state.get("without")
    left_out = {str(name) for name in without} if isinstance(without, list) else set()
    left_out |= {str(row.get("feature")) for tree in trees for row in m.records(tree.get("left_out"))}
    lacking = sorted(left_out & {feature.partition("@")[0] for feature in case.run.needs})
    if lacking:
        what = message("the recipe needs {features}, which the workspace leaves out", features=joined(lacking))
        yield looked_at("workspace", "features", "error", what, message("run {apply} without --without", apply=apply))


def _stacks(trees: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The trees' stacks, by upstream."""
    return {str(tree.get("upstream")): str(tree.get("stack")) for tree in trees}


def _tree(tree: Mapping[str, Any], apply: str) -> Finding:
    name = str(tree.get("upstream"))
    faults = [str(tree["problem"])] if tree.get("problem") else []
    edits = [str(path) for path in tree["edits"]] if isinstance(tree.get("edits"), list) else []
    if edits:
        faults.append(message("changed since: {files}", files=abridged(edits, 4)))
    lock = str(tree.get("lock"))
    if lock not in ("equal", "silent"):
        faults.append(DIFFERS if lock == DIFFERS else lock)
    if faults:
        todo = message("run {apply} (--stash keeps edits); a run is only as reproducible as its trees", apply=apply)
        return looked_at("workspace", name, "error", joined(faults, "; "), todo)
    patches = patch_count(len(m.records(tree.get("patches"))))
    what = message("{stack}, {patches}", stack=tree.get("stack"), patches=patches)
    if lock == "silent":
        silent = message("{what}; the lock does not speak of this form", what=what)
        return looked_at("workspace", name, "ok", silent)
    return looked_at("workspace", name, "ok", message("{what}, equal to the lock", what=what))


def _imports(case: Case, state: Mapping[str, Any], trees: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Which trees the Python of training imports. That which training is started in comes before all others, in Ray's
    workers too, so that it need not be on any path."""
    python, place = str(state.get("python") or "PYTHON"), str(state.get("workspace"))
    if state.get("not_asked"):
        todo = message("--python PY: the Python that trains")
        yield looked_at("workspace", "imports", "unknown", str(state["not_asked"]), todo)
        return
    asked = [tree for tree in trees if isinstance(tree.get("imports"), list) and tree["imports"]]
    elsewhere = [
        _elsewhere(row)
        for tree in asked
        if tree.get("upstream") != case.run.entry.upstream or case.run.entry.folder not in (None, ".")
        for row in m.records(tree["imports"])
        if not row.get("ours")
    ]
    if elsewhere:
        folders = ":".join(str(tree.get("folder") or f"{place}/{tree.get('upstream')}") for tree in asked)
        todo = message(
            "{install}, or export PYTHONPATH={folders} before Ray and training start (--workspace of ray_cluster.sh and"
            " train.sh does)",
            install=f"patchctl install --workspace {shlex.quote(place)} --python {shlex.quote(python)}",
            folders=shlex.quote(folders),
        )
        what = message("{python} imports {packages}", python=python, packages=joined(elsewhere))
        yield looked_at("workspace", "imports", "error", what, todo)
    elif asked:
        yield looked_at("workspace", "imports", "ok", message("{python} imports the patched trees", python=python))


def _elsewhere(row: Mapping[str, Any]) -> Translatable:
    package, place = row.get("package"), row.get("place")
    what = message("{package} from nowhere", package=package)
    if place:
        what = message("{package} from {place}", package=package, place=place)
    return message("{what} ({why})", what=what, why=row["error"]) if row.get("error") else what
