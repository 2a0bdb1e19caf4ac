"""What `apply` did and what a workspace holds, as text and as JSON. Computes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchctl.terminal.text import patch_count, visible_line

if TYPE_CHECKING:
    from patchctl.stack.plan import Plan
    from patchctl.terminal.style import Style
    from patchctl.workspace.apply import Outcome
    from patchctl.workspace.status import Status


def plan_json(plan: Plan, outcome: Outcome, workspace: Path, *, dry_run: bool) -> dict[str, Any]:
    """The shape patchctl.apply/1 (docs/json.md)."""
    return {
        "profile": plan.profile.name,
        "release": plan.profile.release,
        "workspace": str(workspace),
        "dry_run": dry_run,
        "without": list(plan.without),
        "changed": list(outcome.changed),
        "finished": outcome.finished,
        "undone": outcome.undone,
        "stashed": dict(outcome.stashed),
        "trees": {name: asdict(tree) for name, tree in outcome.state.trees.items()},
        "skipped": [{"upstream": s.upstream, "tried": [list(t) for t in s.tried]} for s in outcome.state.skipped],
        "kept": [{"upstream": s.upstream, "tried": [[t.place, t.reason] for t in s.tried]} for s in plan.kept],
    }


def plan_text(plan: Plan, outcome: Outcome, workspace: Path, style: Style, *, dry_run: bool) -> Iterator[str]:
    """One line an upstream, then its patches; then what was left out or skipped, and where."""
    if outcome.finished:
        yield style.note(f"finished an interrupted {outcome.finished} first")
    if outcome.undone:
        yield style.note(f"took an interrupted {outcome.undone} back first: its objects were damaged")
    for planned in plan.stacks:
        changed = planned.upstream in outcome.changed
        word = ("would change" if dry_run else "applied") if changed else "unchanged"
        lock = style.good("as locked") if planned.locked else style.note("not in the lock")
        head = f"{planned.upstream:<12} {planned.stack.name}  {planned.base.form:<5}"
        tree = outcome.state.trees.get(planned.upstream)
        where = f"  in {visible_line(tree.folder)}" if tree is not None and tree.kind == "into" else ""
        yield f"{head}  {word}  {patch_count(len(planned.result.steps))}  tip {planned.result.tip_commit[:12]}  {lock}{where}"
        for step in planned.result.steps:
            yield f"    {step.commit[:12]}  {visible_line(step.patch.feature):<28} {visible_line(step.patch.header.subject)}"
        yield from (
            f"    {style.note('left out')} {visible_line(o.patch.feature)}: {visible_line(o.reason)}"
            for o in planned.omitted
        )
    yield from _skipped([(s.upstream, [(t.place, t.reason) for t in s.tried]) for s in plan.skipped], style)
    for kept in plan.kept:
        tree = outcome.state.trees[kept.upstream]
        yield f"{kept.upstream:<12} {tree.stack}  {tree.form:<5}  {style.note('kept as it was applied')}: its source cannot be had now"
        yield from (f"    tried {visible_line(t.place)}: {visible_line(t.reason)}" for t in kept.tried)
    yield from (f"{n:<12} edits kept on branch {branch}" for n, branch in outcome.stashed.items())
    on = f" on release {plan.profile.release}" if plan.profile.release else ""
    moved = (
        f" (it was on {outcome.moved_from}: --release {outcome.moved_from} takes it there)"
        if outcome.moved_from
        else ""
    )
    yield f"profile {plan.profile.name}{on} {'would be' if dry_run else 'is'} in {workspace}{moved}"


def status_text(status: Status, style: Style) -> Iterator[str]:
    """What `status` prints."""
    yield f"workspace  {status.workspace}"
    yield f"profile    {status.profile or _no_profile(status)}"
    if status.release:
        yield f"release    {status.release}"
    if status.without:
        yield f"without    {', '.join(status.without)}"
    if status.interrupted:
        yield style.bad(f"{status.interrupted} was interrupted: the next apply or revert finishes it")
    if status.profile and not status.trees:
        yield style.bad("no tree is here: none of the profile's sources could be had when it was applied")
    for tree in status.trees:
        lock = {"equal": style.good("as locked"), "silent": style.note("not in the lock")}.get(
            tree.lock, style.bad(tree.lock)
        )
        where = f"  in {tree.folder}" if tree.kind == "into" else ""
        yield f"{tree.upstream:<12} {tree.stack}  {tree.form:<5}  {patch_count(len(tree.patches))}  {tree.tip_commit[:12]}  {lock}{where}"
        yield from (f"    {p.commit[:12]}  {p.feature}" for p in tree.patches)
        yield from (f"    {style.note('left out')} {o.feature}: {visible_line(o.reason)}" for o in tree.left_out)
        yield from (f"    {style.bad('edited')} {visible_line(path)}" for path in tree.edits)
        for what in filter(None, (tree.problem, tree.unlike_profile)):
            yield f"    {style.bad(visible_line(what))}"
        if tree.imports:
            yield from (f"    {i.describe(style)}" for i in tree.imports)
    yield from (f"{name:<12} {style.bad(visible_line(what))}" for name, what in status.lacking.items())
    yield from _skipped([(s.upstream, list(s.tried)) for s in status.skipped], style)


def _no_profile(status: Status) -> str:
    """A workspace that was reverted has none, and so has one whose first apply did not end."""
    first = status.interrupted == "apply" and not status.trees
    return "none yet" if first else "none (reverted)"


def _skipped(skipped: list[tuple[str, list[tuple[str, str]]]], style: Style) -> Iterator[str]:
    for upstream, tried in skipped:
        yield f"{upstream:<12} {style.note('skipped')}: its source could not be had"
        yield from (f"    tried {visible_line(place)}: {visible_line(reason)}" for place, reason in tried)
