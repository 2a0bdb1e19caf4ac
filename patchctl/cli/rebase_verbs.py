"""drift and rebase: how patches fare on other revisions of their upstream, and their way there."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from patchctl.cli.app import (
    App,
    complete_upstream,
    file_option,
    find_stack,
    flag,
    folder_option,
    format_option,
    json_option,
    optional_workspace,
    print_findings,
    release_option,
    verbose_option,
)
from patchctl.cli.sources import Sources, source_options
from patchctl.errors import DONE, FINDINGS, DoesNotApply, PatchctlError, SourceUnavailable, WrongUse

if TYPE_CHECKING:
    from patchctl.drift.types import StackDrift
    from patchctl.manifest.distribution import Distribution
    from patchctl.manifest.types import Stack
    from patchctl.prove.prove import Verdict
    from patchctl.rebase.rebase_state import RebaseRun, RebaseState
    from patchctl.source.types import SourceOptions


@click.command("drift")
@click.argument("stacks", nargs=-1, metavar="[UPSTREAM[/STACK]]...")
@click.option(
    "--against",
    multiple=True,
    metavar="[UPSTREAM=]REVISION,...",
    help="Tags, branches, commits in full or versions, walked in this order; `latest` is the newest final version"
    " [default: latest]. Repeatable.",
)
@flag("--matrix", "Every newer release, where --against names none.")
@file_option(
    "--baseline",
    help="Compare with what an earlier `drift --json` printed, and name new releases; exit code 1 when something newly"
    " broke, else 0.",
)
@file_option(
    "--save-plan",
    "plan",
    help="Keep what was found of one stack on one revision: `rebase --plan FILE` acts on it, while it holds.",
)
@flag(
    "--prove", "Rebase what arrives in a copy of the distribution, and run its proofs on the release; may take hours."
)
@flag("--skip-unavailable", "End as the other stacks do although the source of a stack cannot be had.")
@optional_workspace(
    "Say what differs in the trees of this workspace from what was applied, as a diff, with whose lines they are."
)
@release_option
@source_options
@verbose_option("of a stack on one release each patch, with its files, hunks and names")
@format_option("patchctl.report.drift:DriftOutput")
@click.pass_obj
def drift_command(
    app: App,
    stacks: tuple[str, ...],
    against: tuple[str, ...],
    matrix: bool,
    baseline: Path | None,
    plan: Path | None,
    prove: bool,
    skip_unavailable: bool,
    workspace: Path | None,
    sources: Sources,
    verbose: bool,
    output: str,
) -> int:
    """Say how patches fare on other releases of their upstreams, and what differs in a workspace.

    For each patch, release and hunk: exact, moved, by three-way merge, lost (and to which upstream commit), its file renamed
    or gone, or upstream by now; and what patches and carried files call there that is no longer what it was. Mirrors are read
    where they lie; of source distributions what matters is kept in the cache. Releases are walked in the order given.

    A stack whose source cannot be had is named with the places tried, beside what was found of the others, and the run ends with 3.
    Exit code 0 when nothing is stale, 10 when all that is stale arrives and is proven there by a record of that release's
    stack, or with --prove by this run, 20 when someone has to work; of a workspace 1 when something differs.

    \b
    Examples:
      patchctl drift --matrix
      patchctl drift --workspace workspace
    """
    from patchctl.drift.drift import Drifting, named_revisions, names_upstreams
    from patchctl.drift.saved import Earlier, check_place, plan_of, save_plan
    from patchctl.findings import Report, Shown
    from patchctl.prove.proof_trees import check_provable
    from patchctl.report.drift import DriftOutput, drift_findings, drift_text, exit_code, not_looked_at

    if workspace is not None:
        if stacks or against or matrix or prove or baseline is not None or plan is not None:
            raise WrongUse("--workspace is for the trees of a workspace alone")
        return _edits_of(app, workspace.absolute(), output)
    dist = app.distribution
    meant = {f"{s.upstream}/{s.name}": s for name in stacks for s in _meant(dist, name, one=plan is not None)}
    chosen = list(meant.values()) if stacks else [s for s in dist.stacks.values() if dist.of_named_release(s)]
    named = named_revisions(dist, against, chosen, matrix=matrix)
    earlier = Earlier(baseline) if baseline is not None else None
    if plan is not None:
        check_place(plan)
    if prove:
        check_provable(dist)
    drifting = Drifting(dist, sources.options(), app.progress(output == "json"))
    wanted = [s for s in chosen if s.upstream in named or not names_upstreams(against)]
    found = drifting.stacks((s, named.get(s.upstream)) for s in wanted)
    if plan is not None:
        save_plan(plan, plan_of(dist, found))
    if prove:
        found = [_with_proofs(app, one, sources.options(), quiet=output != "text") for one in found]
    news = None if earlier is None else earlier.news(found)
    shown = Shown(Report(drift_findings(found, news), not_looked_at(found)), "drift", dist.root)
    text = partial(drift_text, found, news, verbose=verbose, mirrors=sources.kept())
    data = DriftOutput(found, (), exit_code(found), *((news.broke, news.appeared) if news else ()))
    print_findings(app, output, shown, data, text)
    if any(one.unavailable for one in found) and not skip_unavailable:
        return SourceUnavailable.code
    return data.verdict if news is None else FINDINGS if news.broke else DONE


def _meant(dist: Distribution, name: str, *, one: bool) -> list[Stack]:
    """The stack that UPSTREAM/STACK names, or every one of UPSTREAM, of the named release where there is one; of the release in force where
    `one` is wanted. Raises WrongUse."""
    own = [] if one else [s for (u, _), s in dist.stacks.items() if u == name and dist.of_named_release(s)]
    return own or [find_stack(dist, name)]


def _with_proofs(app: App, drift: StackDrift, options: SourceOptions, *, quiet: bool) -> StackDrift:
    """With what tests say on its releases."""
    from patchctl.cli.prove_verb import ground_of, teller
    from patchctl.prove.proof_trees import Ground, proven_on

    def ground_in(root: Path) -> Ground:
        return ground_of(App(root, app.cache, app.color, app.release, app.shown), None, options, quiet)

    dist, progress, tell = app.distribution, app.progress(quiet), teller(app, None, quiet)
    rows = (proven_on(drift, row, dist, options, progress, ground_in, tell) for row in drift.releases)
    return replace(drift, releases=tuple(rows))


def _edits_of(app: App, workspace: Path, output: str) -> int:
    from patchctl.blame.line_owners import drift_of_workspace
    from patchctl.findings import Report, Shown
    from patchctl.report.drift import DriftOutput, edited_findings, edited_text

    trees = drift_of_workspace(workspace)
    shown = Shown(Report(edited_findings(trees)), "drift", workspace)
    data = DriftOutput((), trees, FINDINGS if any(tree.files or tree.problem for tree in trees) else DONE)
    print_findings(app, output, shown, data, lambda style: edited_text(trees, style))
    return data.verdict


@click.command("rebase")
@click.argument("name", metavar="[UPSTREAM[/STACK]]", required=False, shell_complete=complete_upstream)
@click.option(
    "--to", metavar="STACK|VERSION|REF", help="Where to: a stack without patches, as `pin` makes it, or a revision."
)
@file_option(
    "--plan",
    help="Stack and revision of a plan that `drift --save-plan` wrote; refused where anything is not as it was.",
)
@click.option(
    "--through", metavar="all|TAG,TAG...", help="Releases on the way, one after the other: all of them, or these."
)
@click.option("--name", "own", metavar="NAME", help="The new stack's name [default: the tag or the branch].")
@flag("--drop-upstreamed", "Leave a patch out of which nothing is left, and say which commit took it.")
@click.option(
    "--python",
    metavar="PYTHON",
    help="Runs upstream's script where a file is made anew [default: PATCHCTL_TORCH_PYTHON].",
)
@flag("--prove", "At the end run the proofs of the new stack's features, and end as they do; may take hours.")
@click.option(
    "--continue", "action", flag_value="continue", help="Go on: the patch is resolved, or the run was killed."
)
@click.option("--skip", "action", flag_value="skip", help="Leave the patch out at which it stopped; with --reason.")
@click.option(
    "--defer", "action", flag_value="defer", help="Leave it out for now; with --reason, which says what it waits for."
)
@click.option(
    "--abort", "action", flag_value="abort", help="Give it up: the distribution is as before. Resolutions are kept."
)
@click.option("--status", "action", flag_value="status", help="Say where it stands.")
@click.option(
    "--reason", metavar="TEXT", help="Why the patch is left out, or left for later; goes into the new stack's manifest."
)
@folder_option("The work tree [default: edit/UPSTREAM-NEW].")
@release_option
@source_options
@json_option("patchctl.report.stacks:RebaseOutput")
@click.pass_obj
def rebase_command(
    app: App,
    name: str | None,
    to: str | None,
    plan: Path | None,
    through: str | None,
    own: str | None,
    drop_upstreamed: bool,
    python: str | None,
    prove: bool,
    action: str | None,
    reason: str | None,
    folder: Path | None,
    sources: Sources,
    as_json: bool,
) -> int:
    """Bring the patches of a stack to another revision of its upstream, one at a time.

    Each is merged three ways with the files that it was made on; git follows renames. Where git cannot go on, the run stops
    with exit code 4 and the work tree is yours: mend the files, `git add` them, then --continue.

    \b
    patchctl rebase vllm-ascend/v0.14.0rc1 --to v0.15.0rc1
    patchctl rebase --continue                           # after each stop
    patchctl rebase --skip --reason "upstream has it"     # leave the patch out, and say why
    patchctl rebase --defer --reason "waits for X"     # leave it for later
    patchctl rebase --abort                              # what was resolved is kept, and found again

    The distribution is changed when the last patch has arrived: patches, manifest, lock. A killed run is gone on with by
    --continue, or taken back by --abort. docs/rebase.md has the whole way.

    Exit codes of one that has ended: 0 nothing was stale, 10 what was stale is proven on the new stack by a record, which
    --prove makes, 20 someone has to work, if only to prove it. Else 2 wrong use, 3 no source, 4 a patch needs a person, 5 edits of yours would
    be lost, 6 another run is at it.
    """
    from patchctl.bump import is_of_bump
    from patchctl.rebase.rebase import abort, accept_resolution, clear_locks, skip
    from patchctl.rebase.rebase_state import RebaseRun, find_worktree, locked, read_state, write_state
    from patchctl.rebase.start import RebaseRequest, start
    from patchctl.report.stacks import rebase_aborted, rebase_output, rebase_status

    if reason and action not in ("skip", "defer"):
        raise WrongUse("--reason says why a patch is left out", hint="give it with --skip or --defer")
    if action is None:
        options, expected = sources.options(), None
        if plan is not None:
            name, to, expected = _planned(app, plan, name, to, options, as_json)
        if name is None or to is None:
            hint = "patchctl rebase STACK --to REVISION; --continue, --skip, --defer, --abort, --status are for one under way"
            raise WrongUse("which stack goes where?", hint=hint)
        old = find_stack(app.distribution, name)
        if prove:
            _check_provable(app, old)
        request = RebaseRequest(old, to, through, folder, own, drop_upstreamed, python, expected, prove)
        run, state = start(app.distribution, request, options, app.progress(as_json))
        with locked(run.place.hidden):
            state = write_state(run.place.hidden, replace(state, source=sources.source, mirrors=sources.kept()))
            return _continue(app, run, state, as_json)
    if name or to or through or plan or own:
        raise WrongUse(f"--{action} is for the rebase under way", hint="name no stack; --dir names another work tree")
    place = find_worktree(folder, Path.cwd(), given_up=action == "abort")
    of_bump = is_of_bump(app.distribution.root, place.folder)
    tree = place.held or place.gone
    state = read_state(tree)
    sources = sources.after(state.source, state.mirrors)
    run = RebaseRun(app.distribution, place, sources.options(), app.progress(as_json), of_bump)
    if action == "status":
        app.emit("rebase", rebase_output(run, state), lambda style: rebase_status(run, state), as_json)
        return DONE
    with locked(tree):
        clear_locks(run, tree, state)
        if action == "abort":
            aside = abort(run, state)
            data = rebase_output(run, state, status="aborted", aside=aside)
            app.emit("rebase", data, lambda style: rebase_aborted(state, run.store(state).folder, aside), as_json)
            return DONE
        if prove:
            _check_provable(app, app.distribution.stack(state.upstream, state.old))
            state = write_state(tree, replace(state, prove=True))
        if python or drop_upstreamed:
            drops = drop_upstreamed or state.drop_upstreamed
            state = write_state(tree, replace(state, python=python or state.python, drop_upstreamed=drops))
        if action == "continue":
            state = accept_resolution(run, state)
        else:
            state = skip(run, state, reason, "dropped" if action == "skip" else "postponed")
        return _continue(app, run, state, as_json)


def _check_provable(app: App, old: Stack) -> None:
    """Raise WrongUse where the end could prove nothing."""
    from patchctl.prove.proof_trees import check_provable, profile_of

    check_provable(app.distribution)
    profile_of(app.distribution, old, None)


def _planned(
    app: App, file: Path, name: str | None, to: str | None, options: SourceOptions, as_json: bool
) -> tuple[str, str, str | None]:
    """Stack, revision and, where git told it, the commit of a plan that still holds."""
    from patchctl.drift.saved import check_plan, read_plan

    if name or to:
        raise WrongUse("--plan says which stack goes where", hint="name neither a stack nor --to beside it")
    plan = read_plan(file)
    progress = app.progress(as_json)
    try:
        check_plan(app.distribution, plan, options, progress)
    finally:
        progress.finish()
    return f"{plan.upstream}/{plan.stack}", plan.release, plan.commit if plan.form == "git" else None


def _continue(app: App, run: RebaseRun, state: RebaseState, as_json: bool) -> int:
    """To the next stop, or to the end with the lock and, if wanted, the proofs."""
    from patchctl.bump import note_arrival
    from patchctl.rebase.finish import after_proofs
    from patchctl.rebase.rebase import to_next_stop
    from patchctl.report.stacks import rebase_done, rebase_output, rebase_stopped

    note = partial(note_arrival, app.distribution.root) if run.bump else None
    state, ended, locked = to_next_stop(run, state, note)
    if ended is None:
        app.emit("rebase", rebase_output(run, state), lambda style: rebase_stopped(run, state), as_json)
        return DoesNotApply.code
    app.forget_distribution()
    if state.prove:
        ended = after_proofs(ended, app.distribution, _red(app, ended.stack, run.options, as_json))
    data = rebase_output(run, state, ended, locked=locked)
    app.emit("rebase", data, lambda style: rebase_done(run, state, ended), as_json)
    return ended.verdict


def _red(app: App, stack: Stack, options: SourceOptions, as_json: bool) -> list[str]:
    """What the proofs of the new stack left red; what keeps them from running is said too, since all is written."""
    from patchctl.cli.prove_verb import prove_stack

    try:
        verdicts = prove_stack(app, stack, options, as_json=as_json)
    except PatchctlError as error:
        return [f"nothing could be proven: {error.what}"]
    return [f"{v.feature} {_fault(v)}: {v.problems[0]}" for v in verdicts if v.problems]


def _fault(verdict: Verdict) -> str:
    if verdict.dropped:
        return "was dropped, and its tests do not show that upstream meets its need"
    return "is broken" if verdict.broken else "is not proven"
