"""Where a rebase stands, as lines and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchctl.errors import DONE, MOVES_CLEANLY, SOMEBODY_HAS_TO_WORK
from patchctl.report.proving import trees_of
from patchctl.terminal.text import patch_count, visible_line

if TYPE_CHECKING:
    from patchctl.rebase.finish import RebaseResult as Ended
    from patchctl.rebase.rebase_state import Run, State, Step


def status(run: Run, state: State) -> Iterator[str]:
    """How far it is, and what to do."""
    yield from _steps(state, state.steps)
    if state.stop is not None and not run.place.is_ours:
        yield from _stop(run, state)
        return
    yield f"{patch_count(len(state.todo))} to go to {_here(state)}; the run was killed, or is under way"
    yield "next: patchctl rebase --continue, or --abort"


def stopped(run: Run, state: State) -> Iterator[str]:
    """What became of the patch at which it stopped before and of those after it, and of this one, the way on."""
    asked = [n for n, step in enumerate(state.steps) if step.outcome in ("resolved", "dropped", "postponed")]
    before = asked[-1] if asked else 0
    if before:
        yield f"{patch_count(before)} before, see patchctl rebase --status"
    yield from _steps(state, state.steps[before:])
    yield from _stop(run, state)


def _stop(run: Run, state: State) -> Iterator[str]:
    """What is in the way, and the commands that go on."""
    stop = state.stop
    assert stop is not None
    folder = run.place.folder
    if stop.kind == "empty":
        yield visible_line(f"{stop.feature}: nothing is left of it at {_here(state)}; {stop.reason}")
        yield "next: patchctl rebase --skip    (takes that as the reason; --reason TEXT gives another)"
        return
    yield f"{stop.feature}: git cannot merge it into {_here(state)}, {len(state.todo) - 1} more to go"
    yield from (visible_line(f"    {path}: {why}") for path, why in stop.paths.items())
    if stop.reason:
        yield visible_line(f"    {stop.reason}, says the patch itself")
    yield f"in {folder}: mend the files, `git add` them (`git rm` what goes); `git diff` shows both sides"
    yield "next: patchctl rebase --continue, or --skip --reason TEXT, or --postpone --reason TEXT, or --abort"


def done(run: Run, state: State, ended: Ended) -> Iterator[str]:
    """All patches, what was written, what was dropped, and what nobody has proven."""
    name = f"{state.upstream}/{state.new}"
    yield from _steps(state, state.steps)
    yield f"{name}: {patch_count(len(ended.files))} from {state.old}, {len(ended.same)} of them byte for byte as before"
    yield f"work tree {ended.folder}, range-diff {ended.range_diff}"
    yield from (visible_line(one) for one in ended.open)
    work = ended.stale & ended.unproven.keys() | ended.stack.postponed.keys()
    if ended.unproven:
        yield f"not proven on {name}: {', '.join(ended.unproven)}"
    yield {
        DONE: "nothing is stale",
        MOVES_CLEANLY: "what is stale is proven here",
        SOMEBODY_HAS_TO_WORK: f"somebody has to work: {', '.join(sorted(work)) or 'see above'}",
    }[ended.verdict]
    if ended.unproven:
        yield f"next: patchctl prove --all --stack {name} --trees {trees_of(name)}"


def aborted(state: State, kept: Path, aside: Path | None) -> Iterator[str]:
    """What is gone and what is not."""
    yield f"{state.upstream}/{state.new}: given up; the distribution is as before"
    if aside is not None:
        yield f"what was half resolved is kept in {aside}"
    yield f"what was resolved is kept in {kept}, and the same rebase takes it again"


def _here(state: State) -> str:
    return state.stages[state.stage].name


def _steps(state: State, steps: Sequence[Step]) -> Iterator[str]:
    several = len(state.stages) > 1
    for step in steps:
        where = f"{step.stage}  " if several else ""
        yield visible_line(f"{where}{step.outcome:<9} {step.feature}{f': {step.reason}' if step.reason else ''}")
        yield from (visible_line(f"    {note}") for note in step.notes)


def data(
    run: Run,
    state: State,
    ended: Ended | None = None,
    *,
    status: str | None = None,
    aside: Path | None = None,
    locked: bool = False,
) -> dict[str, Any]:
    """The shape `patchctl.rebase/1`, less its name."""
    told = "done" if ended else "running" if state.stop is None else "stopped"
    stop = state.stop
    return {
        "upstream": state.upstream,
        "from": state.old,
        "to": state.new,
        "status": status or told,
        "folder": str(run.place.folder),
        "stages": [s.name for s in state.stages],
        "stage": _here(state),
        "steps": [asdict(s) for s in state.steps],
        "to_do": [feature for feature, _ in state.todo],
        "dropped": state.dropped,
        "postponed": state.postponed,
        "stopped_at": None
        if stop is None
        else {"kind": stop.kind, "feature": stop.feature, "files": stop.paths, "reason": stop.reason},
        "aside": str(aside) if aside else None,
        "files": list(ended.files) if ended else [],
        "range_diff": str(ended.range_diff) if ended else None,
        "locked": locked,
        "unproven": ended.unproven if ended else {},
        "open": ended.open if ended else [],
        "verdict": ended.verdict if ended else None,
    }
