"""What `import`, `pin` and `rebase` did to a stack, as text and as JSON. Computes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchctl.errors import DONE, MOVES_CLEANLY, SOMEBODY_HAS_TO_WORK
from patchctl.report.proving import trees_of
from patchctl.terminal.text import patch_count, visible_line

if TYPE_CHECKING:
    from patchctl.importing.import_patches import ImportResult
    from patchctl.pin.pin import PinResult
    from patchctl.rebase.finish import RebaseResult
    from patchctl.rebase.rebase_state import RebaseRun, RebaseState, RebaseStep


def import_text(result: ImportResult) -> Iterator[str]:
    """A line a patch, what was mended below it, and what to do next."""
    stack = result.target.stack
    name = f"{stack.upstream}/{stack.name}"
    yield from map(visible_line, result.said)
    for left in result.left:
        yield visible_line(f"passed over {left.file}: {left.why}")
    for patch in result.patches:
        yield visible_line(f"{patch.file}  from {patch.source}, {patch.author}: {patch.subject}")
        yield from (visible_line(f"    {note}") for note in patch.notes)
    new = " (a new stack)" if result.target.is_new else ""
    done = "in" if result.written else "dry run: would go into"
    yield f"{patch_count(len(result.patches))} {done} {name}{new}, tree {result.tip_tree[:12]}"
    waiting = sum(p.open_lines for p in result.patches)
    if not result.written:
        yield "nothing was written"
        return
    if waiting:
        yield f"{waiting} lines of headers wait to be filled in; `patchctl verify --static` names each"
    yield f"next: patchctl edit {name}, fill them in with `git rebase -i`, patchctl export {name}, patchctl lock"


def import_json(result: ImportResult) -> dict[str, Any]:
    """The shape `patchctl.import/1`, less its name."""
    stack = result.target.stack
    return {
        "upstream": stack.upstream,
        "stack": stack.name,
        "new_stack": result.target.is_new,
        "extends": stack.extends,
        "written": result.written,
        "base": result.base.commit,
        "form": result.base.form,
        "tip_tree": result.tip_tree,
        "candidates": [
            {
                "upstream": c.upstream,
                "stack": c.stack,
                "blobs": c.wanted,
                "at_pin": c.at_pin,
                "at_tip": c.at_tip,
                "paths": c.paths_wanted,
                "paths_found": c.paths,
                "named_as_base": c.base_commit,
            }
            for c in result.target.candidates
        ],
        "said": list(result.said),
        "passed_over": [{"file": left.file, "why": left.why} for left in result.left],
        "patches": [
            {
                "source": p.source,
                "file": p.file,
                "feature": p.feature,
                "subject": p.subject,
                "author": p.author,
                "notes": list(p.notes),
                "open_lines": p.open_lines,
            }
            for p in result.patches
        ],
    }


def pin_text(pinned: PinResult, root: Path, *, written: bool) -> Iterator[str]:
    """The pin, what was not had, what to look at, the proposal, and what to do next."""
    stack, pin = pinned.stack, pinned.stack.pin
    name = f"{stack.upstream}/{stack.name}"
    yield f"{name}  comes from {pinned.like.name}"
    yield f"    commit  {pin.commit or 'none: the source distribution alone is pinned'}{f'  tag {pin.tag}' if pin.tag else ''}"
    yield f"    tree    {pin.tree or 'not established: no repository could be had'}"
    yield f"    sdist   {f'{pin.sdist.version}  {pin.sdist.sha256}' if pin.sdist else 'none'}"
    yield from (visible_line(f"    {base.form} from {base.origin}") for base in pinned.bases)
    yield from (visible_line(f"    not had from {t.place}: {t.reason}") for t in pinned.tried)
    yield from (visible_line(f"    {note}") for note in pinned.notes)
    if pinned.runtime:
        yield "proposal for a profile's `runtime:`, read from upstream's own files; no profile was changed:"
        yield from (visible_line(f"    {p.name:<12} {p.value:<16} {p.file}:{p.line}") for p in pinned.runtime)
    if not written:
        yield "dry run: nothing was written; the manifest would be"
        yield from pinned.text.splitlines()
        return
    yield f"written  {pinned.file.relative_to(root).as_posix()}"
    yield f"next: patchctl rebase {stack.upstream}/{pinned.like.name} --to {name}"


def pin_json(pinned: PinResult, *, written: bool) -> dict[str, Any]:
    """The shape `patchctl.pin/1`, less its name."""
    stack, pin = pinned.stack, pinned.stack.pin
    return {
        "upstream": stack.upstream,
        "stack": stack.name,
        "comes_from": pinned.like.name,
        "written": written,
        "file": str(pinned.file),
        "commit": pin.identity,
        "tree": pin.tree,
        "tag": pin.tag,
        "sdist": asdict(pin.sdist) if pin.sdist else None,
        "forms": [b.form for b in pinned.bases],
        "generated": [g.path for g in stack.generated],
        "notes": list(pinned.notes),
        "runtime": [asdict(p) for p in pinned.runtime],
        "tried": [[t.place, t.reason] for t in pinned.tried],
        "manifest": pinned.text,
    }


def rebase_status(run: RebaseRun, state: RebaseState) -> Iterator[str]:
    """How far it is, and what to do."""
    yield from _steps(state, state.steps)
    if state.stop is not None and not run.place.is_ours:
        yield from _stop(run, state)
        return
    yield f"{patch_count(len(state.todo))} to go to {_here(state)}; the run was killed, or is under way"
    yield "next: patchctl rebase --continue, or --abort"


def rebase_stopped(run: RebaseRun, state: RebaseState) -> Iterator[str]:
    """What became of the patch at which it stopped before and of those after it, and of this one, the way on."""
    asked = [n for n, step in enumerate(state.steps) if step.outcome in ("resolved", "dropped", "postponed")]
    before = asked[-1] if asked else 0
    if before:
        yield f"{patch_count(before)} before, see patchctl rebase --status"
    yield from _steps(state, state.steps[before:])
    yield from _stop(run, state)


def _stop(run: RebaseRun, state: RebaseState) -> Iterator[str]:
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


def rebase_done(run: RebaseRun, state: RebaseState, ended: RebaseResult) -> Iterator[str]:
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


def rebase_aborted(state: RebaseState, kept: Path, aside: Path | None) -> Iterator[str]:
    """What is gone and what is not."""
    yield f"{state.upstream}/{state.new}: given up; the distribution is as before"
    if aside is not None:
        yield f"what was half resolved is kept in {aside}"
    yield f"what was resolved is kept in {kept}, and the same rebase takes it again"


def _here(state: RebaseState) -> str:
    return state.stages[state.stage].name


def _steps(state: RebaseState, steps: Sequence[RebaseStep]) -> Iterator[str]:
    several = len(state.stages) > 1
    for step in steps:
        where = f"{step.stage}  " if several else ""
        yield visible_line(f"{where}{step.outcome:<9} {step.feature}{f': {step.reason}' if step.reason else ''}")
        yield from (visible_line(f"    {note}") for note in step.notes)


def rebase_json(
    run: RebaseRun,
    state: RebaseState,
    ended: RebaseResult | None = None,
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
