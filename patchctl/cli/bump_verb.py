"""patchctl bump."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import click

from patchctl.cli.app import App, complete_release, complete_upstream, json_option
from patchctl.cli.sources import Sources, source_options
from patchctl.errors import DONE, SOMEBODY_HAS_TO_WORK, DoesNotApply, WrongUse

if TYPE_CHECKING:
    from patchctl.bump.bump import BumpState, StackMove
    from patchctl.drift.drift import Drifting
    from patchctl.manifest.distribution import Distribution
    from patchctl.manifest.types import Release, Stack
    from patchctl.prove.prove import Verdict
    from patchctl.rebase.finish import RebaseResult
    from patchctl.rebase.rebase_state import RebaseRun, RebaseState, RebaseWorktree
    from patchctl.source.types import SourceOptions
    from patchctl.terminal.style import Style


@click.command("bump")
@click.argument("release", required=False, shell_complete=complete_release)
@click.option("--to", metavar="NEW", help="The new release [default: the next point release, YEAR.MONTH.N].")
@click.option(
    "--only",
    multiple=True,
    metavar="UPSTREAM[@REVISION]",
    shell_complete=complete_upstream,
    help="Move this upstream, to its newest release or to a revision, and no other that is not named. Repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Say what would move, and what each patch would take. Writes nothing.")
@click.option("--no-prove", is_flag=True, help="Run no proofs at the end; may take hours otherwise.")
@click.option("--continue", "action", flag_value="continue", help="Go on: a patch is resolved, or the run was killed.")
@click.option("--abort", "action", flag_value="abort", help="Forget the bump. Stacks that have arrived stay.")
@source_options
@json_option("patchctl.report.bump:BumpOutput")
@click.pass_obj
def command(
    app: App,
    release: str | None,
    to: str | None,
    only: tuple[str, ...],
    dry_run: bool,
    no_prove: bool,
    action: str | None,
    sources: Sources,
    as_json: bool,
) -> int:
    """Make a new release from RELEASE, or from the newest: move stacks to newer revisions, lock and prove them, write it.

    Without --only, the upstreams whose files name others (vllm-ascend names a vllm) go to their newest release, and the
    others to the newer releases that they name. Each move is a rebase (docs/rebase.md). Where a patch needs a person,
    the run stops with exit code 4: resolve it, `git add`, then --continue; `patchctl rebase --skip` leaves a patch out.
    A killed run is continued the same way. When all have arrived, the release's manifest is written and proofs are run.

    Exit code 0 if every patch of the new stacks is proven, 20 if somebody has to work, 4 at a stop.

    \b
    Examples:
      patchctl bump --dry-run
      patchctl bump RELEASE --to NEW --only vllm-ascend
      patchctl bump --continue
    """
    options = sources.options()
    if action is None:
        return _begin(app, release, to, only, options, dry_run=dry_run, prove=not no_prove, as_json=as_json)
    if release or to or only:
        raise WrongUse(f"--{action} is for the bump under way", hint="name no release and no upstream")
    from patchctl.bump.bump import read_state

    state = read_state(app.distribution.root)
    return _abort(app, state, as_json) if action == "abort" else _go_on(app, state, options, as_json)


def _abort(app: App, state: BumpState, as_json: bool) -> int:
    from patchctl.bump.bump import state_file
    from patchctl.manifest.rewrite import exclusive_writer
    from patchctl.report.bump import BumpOutput, moves_text

    with exclusive_writer(app.distribution.root):
        state_file(app.distribution.root).unlink()
    data = BumpOutput(state.release, state.new, state.moves, "aborted")
    app.emit("bump", data, lambda style: moves_text(state, style), as_json)
    return DONE


def _begin(
    app: App,
    release: str | None,
    to: str | None,
    only: tuple[str, ...],
    options: SourceOptions,
    *,
    dry_run: bool,
    prove: bool,
    as_json: bool,
) -> int:
    """Find what moves, and do it unless this is a dry run."""
    from patchctl.bump.bump import BumpState, check_new, find_moves, newest_release, next_point, write_state
    from patchctl.drift.drift import Drifting
    from patchctl.manifest.rewrite import exclusive_writer
    from patchctl.report.bump import BumpOutput, moves_text

    dist = app.distribution
    old = dist.release(release) if release else newest_release(dist)
    to = to or next_point(dist, old)
    check_new(dist, old, to)
    stacks = {u: dist.stack(u, name) for u, name in old.stacks.items()}
    drifting = Drifting(dist, options, app.progress(as_json))
    moves = find_moves(drifting, stacks, only, old.python)
    drifting.progress.finish()
    state = BumpState(old.name, to, moves, prove)
    if dry_run or not moves:
        status = "dry run" if moves else "nothing to move"
        data = BumpOutput(old.name, to, moves, status, efforts=_efforts(drifting, stacks, moves))
        app.emit("bump", data, lambda style: moves_text(state, style, data.efforts), as_json)
        return DONE
    with exclusive_writer(dist.root):
        write_state(dist.root, state)
    return _go_on(app, state, options, as_json)


def _efforts(drifting: Drifting, stacks: dict[str, Stack], moves: list[StackMove]) -> dict[str, str]:
    """One word by upstream, as of `outdated`."""
    from patchctl.drift.outdated import effort

    found = {}
    for move in moves:
        (drift,) = drifting.stack(stacks[move.upstream], [move.to]).releases
        found[move.upstream] = effort(drift)
    drifting.progress.finish()
    return found


def _go_on(app: App, state: BumpState, options: SourceOptions, as_json: bool) -> int:
    """Every move that has not arrived yet, then the release, then the proofs."""
    from patchctl.atomic import replace_file
    from patchctl.bump.bump import compare_stacks, state_file, write_release, write_state
    from patchctl.report.bump import BumpOutput, BumpStop, bump_text, imports_text, report_markdown

    report = app.distribution.root / "edit" / f"bump-{state.new}.md"
    places = {m.upstream: _place(app, state, m) for m in state.moves}
    for move in state.moves:
        state, stopped = _arrive(app, state, move, options, as_json)
        if stopped is not None:
            stop = stopped[1].stop
            at = BumpStop(move.upstream, stop.feature, stop.paths) if stop else None
            data = BumpOutput(
                state.release, state.new, state.moves, "stopped", stop=at, stacks=state.stacks, report=report
            )
            replace_file(report, report_markdown(data, {}).encode())
            app.emit("bump", data, partial(_stopped, *stopped), as_json)
            return DoesNotApply.code
    dist = app.distribution
    old, new = dist.release(state.release), {u: dist.stack(u, name) for u, name in state.stacks.items()}
    if not state.told and (missing := _unprovided(app, old, new, options, as_json)):
        write_state(dist.root, replace(state, told=True))
        data = BumpOutput(
            state.release, state.new, state.moves, "stopped", stacks=state.stacks, imports=missing, report=report
        )
        replace_file(report, report_markdown(data, {}).encode())
        app.emit("bump", data, lambda style: imports_text(data, style), as_json)
        return SOMEBODY_HAS_TO_WORK
    if state.new not in dist.releases:
        write_release(dist, old, state.new, new)
        app.__dict__.pop("distribution", None)
    _written(app, state, old, new, options, as_json)
    red = _proven(app, new, options, as_json) if state.prove else []
    dist = app.distribution
    classes = {
        u: compare_stacks(dist, dist.stack(u, old.stacks[u]), stack, state.merges.get(u, {}))
        for u, stack in new.items()
    }
    data = BumpOutput(
        state.release,
        state.new,
        state.moves,
        "done",
        stacks=state.stacks,
        patches=classes,
        red=red,
        open=state.open,
        report=report,
    )
    diffs = {
        u: place.range_diff.read_text("utf-8", "replace") for u, place in places.items() if place.range_diff.is_file()
    }
    replace_file(report, report_markdown(data, diffs).encode())
    state_file(dist.root).unlink(missing_ok=True)
    app.emit("bump", data, lambda style: bump_text(data, style), as_json)
    return SOMEBODY_HAS_TO_WORK if red or state.open or data.unproven else DONE


def _place(app: App, state: BumpState, move: StackMove) -> RebaseWorktree:
    from patchctl.rebase.rebase_state import RebaseWorktree

    return RebaseWorktree((app.distribution.root / "edit" / f"{move.upstream}-bump-{state.new}").absolute())


def _unprovided(app: App, old: Release, new: dict[str, Stack], options: SourceOptions, as_json: bool) -> list[str]:
    from patchctl.pin.pin import unprovided_imports

    dist, progress = app.distribution, app.progress(as_json)
    found = [
        unprovided_imports(dist, dist.stack(u, old.stacks[u]), stack, options, progress) for u, stack in new.items()
    ]
    return [line for lines in found for line in lines]


def _written(
    app: App, state: BumpState, old: Release, new: dict[str, Stack], options: SourceOptions, as_json: bool
) -> None:
    """What follows from the release: its requirements, and the generated pages. Raises NoSolution."""
    from patchctl.bump.bump import own_requirements, write_release
    from patchctl.check.pages import write_documents
    from patchctl.cli.output_pages import output_pages
    from patchctl.requirements.relock import relock

    if (named := own_requirements(app.distribution, state.new)) is not None:
        write_release(app.distribution, old, state.new, new, named)
        app.__dict__.pop("distribution", None)
        relock(app.distribution, options, app.progress(as_json), check=False, only=named)
    write_documents(app.distribution, output_pages(app.distribution.root), check=False, strict=False)


def _arrive(
    app: App, state: BumpState, move: StackMove, options: SourceOptions, as_json: bool
) -> tuple[BumpState, tuple[RebaseRun, RebaseState] | None]:
    """One move to its end, or to where a person is needed. A rebase that is under way is gone on with, one that has ended is kept."""
    from patchctl.bump.bump import write_state
    from patchctl.cli.rebase_verb import to_next_stop
    from patchctl.rebase.rebase import accept_resolution, clear_locks
    from patchctl.rebase.rebase_state import RebaseRun, locked, read_state
    from patchctl.rebase.start import RebaseRequest, start

    dist, progress = app.distribution, app.progress(as_json)
    old, known = dist.stack(move.upstream, move.stack), state.stacks.get(move.upstream)
    place = _place(app, state, move)
    if place.held is not None:
        run = RebaseRun(dist, place, options, progress)
        with locked(place.held):
            clear_locks(run, place.held, rebase := read_state(place.held))
            state = write_state(dist.root, replace(state, stacks=state.stacks | {move.upstream: rebase.new}))
            rebase, ended, _ = to_next_stop(app, run, accept_resolution(run, rebase), options)
        return (_arrived(dist, state, rebase, ended), None) if ended else (state, (run, rebase))
    if known is not None and (move.upstream, known) in dist.stacks:
        return state, None
    run, rebase = start(dist, RebaseRequest(old, move.to, None, place.folder, None, False, None), options, progress)
    with locked(run.place.hidden):
        state = write_state(dist.root, replace(state, stacks=state.stacks | {move.upstream: rebase.new}))
        rebase, ended, _ = to_next_stop(app, run, rebase, options)
    return (_arrived(dist, state, rebase, ended), None) if ended else (state, (run, rebase))


def _arrived(dist: Distribution, state: BumpState, rebase: RebaseState, ended: RebaseResult) -> BumpState:
    from patchctl.bump.bump import write_state

    merges: dict[str, str] = {step.feature: step.outcome for step in rebase.steps}
    noted = replace(state, merges=state.merges | {rebase.upstream: merges}, open=[*state.open, *ended.open])
    return write_state(dist.root, noted)


def _stopped(run: RebaseRun, rebase: RebaseState, style: Style) -> list[str]:
    """As `rebase` says it, with the commands of a bump."""
    from patchctl.report.stacks import rebase_stopped

    *lines, _ = rebase_stopped(run, rebase)
    leave = f"patchctl rebase --dir {run.place.folder} --skip --reason TEXT"
    return [*lines, "next: patchctl bump --continue", f"or leave the patch out: {leave}, then bump --continue"]


def _proven(app: App, stacks: dict[str, Stack], options: SourceOptions, as_json: bool) -> list[str]:
    """What the proofs of the new stacks left red, a line a feature."""
    from patchctl.cli.prove_verb import check_provable, prove_stack
    from patchctl.errors import PatchctlError

    red = []
    for stack in stacks.values():
        try:
            check_provable(app.distribution)
            verdicts: list[Verdict] = prove_stack(app, stack, options, as_json=as_json)
            red += [f"{v.feature}@{stack.upstream}: {v.problems[0]}" for v in verdicts if v.problems]
        except PatchctlError as error:
            red.append(f"{stack.upstream}/{stack.name}: nothing could be proven: {error.what}")
    return red
