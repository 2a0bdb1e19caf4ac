"""patchctl drift."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from patchctl.cli.app import App, find_stack, format_option, print_findings, release_option
from patchctl.cli.sources import Sources, source_options
from patchctl.errors import DONE, FINDINGS, SourceUnavailable, WrongUse

if TYPE_CHECKING:
    from patchctl.drift.types import StackDrift
    from patchctl.manifest.distribution import Distribution
    from patchctl.manifest.types import Stack
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
@click.option("--matrix", is_flag=True, help="Every newer release, where --against names none.")
@click.option(
    "--baseline",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Compare with what an earlier `drift --json` printed, and name new releases; exit code 1 when something newly"
    " broke, else 0.",
)
@click.option(
    "--save-plan",
    "plan",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Keep what was found of one stack on one revision: `rebase --plan FILE` acts on it, while it holds.",
)
@click.option(
    "--prove",
    "prove",
    is_flag=True,
    help="Rebase what arrives in a copy of the distribution, and run its proofs on the release; may take hours.",
)
@click.option(
    "--skip-unavailable", is_flag=True, help="End as the other stacks do although the source of a stack cannot be had."
)
@click.option(
    "--workspace",
    "-w",
    type=click.Path(path_type=Path, file_okay=False, readable=False),
    metavar="DIR",
    help="Say what differs in the trees of this workspace from what was applied, as a diff, with whose lines they are.",
)
@release_option
@source_options
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
    from patchctl.report.drift import drift_findings, drift_output, drift_text, exit_code, not_looked_at

    if workspace is not None:
        if stacks or against or matrix or prove or baseline is not None or plan is not None:
            raise WrongUse("--workspace is for the trees of a workspace alone")
        return _workspace(app, workspace.absolute(), output)
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
        found = [_proven(app, one, sources.options(), quiet=output != "text") for one in found]
    news = None if earlier is None else earlier.news(found)
    shown = Shown(Report(drift_findings(found, news), not_looked_at(found)), "drift", dist.root)
    print_findings(app, output, shown, drift_output(found, news), lambda style: drift_text(found, news, style))
    if any(one.unavailable for one in found) and not skip_unavailable:
        return SourceUnavailable.code
    return exit_code(found) if news is None else FINDINGS if news.broke else DONE


def _meant(dist: Distribution, name: str, *, one: bool) -> list[Stack]:
    """The stack that UPSTREAM/STACK names, or every one of UPSTREAM, of the named release where there is one; of the release in force where
    `one` is wanted. Raises WrongUse."""
    own = [] if one else [s for (u, _), s in dist.stacks.items() if u == name and dist.of_named_release(s)]
    return own or [find_stack(dist, name)]


def _proven(app: App, drift: StackDrift, options: SourceOptions, *, quiet: bool) -> StackDrift:
    """With what tests say on its releases."""
    from patchctl.cli.prove_verb import ground_of, teller
    from patchctl.prove.proof_trees import Ground, proven_on

    def ground_in(root: Path) -> Ground:
        return ground_of(App(root, app.cache, app.color, app.release, app.shown), None, options, quiet)

    dist, progress, tell = app.distribution, app.progress(quiet), teller(app, None, quiet)
    rows = (proven_on(drift, row, dist, options, progress, ground_in, tell) for row in drift.releases)
    return replace(drift, releases=tuple(rows))


def _workspace(app: App, workspace: Path, output: str) -> int:
    from patchctl.blame.line_owners import drift_of_workspace
    from patchctl.findings import Report, Shown
    from patchctl.report.drift import edited_findings, edited_output, edited_text

    trees = drift_of_workspace(workspace)
    shown = Shown(Report(edited_findings(trees)), "drift", workspace)
    print_findings(app, output, shown, edited_output(trees), lambda style: edited_text(trees, style))
    return FINDINGS if any(tree.files or tree.problem for tree in trees) else DONE
