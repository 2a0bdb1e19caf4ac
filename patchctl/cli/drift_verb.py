"""patchctl drift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from patchctl.cli.app import App, find_stack, format_option, print_findings, release_option
from patchctl.cli.sources import Sources, source_options
from patchctl.errors import DONE, FINDINGS, PatchctlError, SourceUnavailable, WrongUse

if TYPE_CHECKING:
    from patchctl.drift.types import ReleaseDrift, StackDrift
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
    from patchctl.drift.drift import Drifting
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
    named = _named(app, against, chosen, matrix=matrix)
    earlier = Earlier(baseline) if baseline is not None else None
    if plan is not None:
        check_place(plan)
    if prove:
        check_provable(dist)
    drifting = Drifting(dist, sources.options(), app.progress(output == "json"))
    wanted = [s for s in chosen if s.upstream in named or not _restricts(against)]
    found = drifting.stacks((s, named.get(s.upstream)) for s in wanted)
    if plan is not None:
        save_plan(plan, plan_of(dist, found))
    if prove:
        options, quiet = sources.options(), output != "text"
        found = [
            replace(one, releases=tuple(_proven_on(app, one, row, options, as_json=quiet) for row in one.releases))
            for one in found
        ]
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


def _restricts(against: Sequence[str]) -> bool:
    """Whether every --against names its upstream: others are not meant then."""
    return bool(against) and all("=" in one for one in against)


def _named(app: App, against: Sequence[str], chosen: Sequence[Stack], *, matrix: bool) -> dict[str, list[str]]:
    """The revisions by upstream; an upstream that is not there is asked for all newer ones. Raises WrongUse."""
    upstreams = list(dict.fromkeys(s.upstream for s in chosen))
    named: dict[str, list[str]] = {}
    for one in against:
        upstream, equals, names = one.rpartition("=")
        if equals:
            app.distribution.upstream(upstream)
            if upstream not in upstreams:
                raise WrongUse(f"--against {one}: no stack of {upstream} is looked at")
        revisions = [n for n in names.split(",") if n]
        if not revisions:
            raise WrongUse(f"--against takes revisions, not {one!r}", hint="for example --against v0.6.1,latest")
        for name in [upstream] if equals else upstreams:
            named.setdefault(name, []).extend(revisions)
    if not against and not matrix:
        return {name: ["latest"] for name in upstreams}
    return named


def _proven_on(
    app: App, drift: StackDrift, release: ReleaseDrift, options: SourceOptions, *, as_json: bool
) -> ReleaseDrift:
    """With what tests say, where something arrives that no record proves. What keeps tests from being run is said of every patch, since
    the rest of the matrix is there."""
    from patchctl.cli.lock_verb import lock_stack
    from patchctl.cli.prove_verb import prove_stack
    from patchctl.drift.types import ARRIVES
    from patchctl.manifest.distribution import Distribution
    from patchctl.rebase.rebase import copy_distribution, rebase_unattended
    from patchctl.scratch import scratch

    arriving = {(drift.upstream, p.feature) for p in release.patches if not p.clean and p.state in ARRIVES}
    wanted = arriving | {(c.upstream, c.feature) for c in release.callers if c.proof is not None}
    if not wanted:
        return release
    progress, said = app.progress(as_json), dict[tuple[str, str], tuple[str | None, bool]]()
    try:
        with scratch("patchctl-drift-") as folder:
            root = copy_distribution(app.distribution.root, folder)
            dist = Distribution.load(root)
            old = dist.stack(drift.upstream, drift.stack)
            new = rebase_unattended(dist, old, release.release, folder, options, progress)
            copy = App(root, app.cache, app.color, app.release, app.shown)  # which has that stack
            lock_stack(copy.distribution, new, options, progress, check=False)
            said = {(drift.upstream, f): (why, False) for f, why in new.postponed.items()}
            for one in prove_stack(copy, new, options, as_json=as_json, only=wanted):
                done = one.status == "proven"
                said[one.upstream, one.feature] = None if done else one.reasons[0], not done and one.broken
        other = "it did not come along"
    except PatchctlError as error:
        other = f"nothing could be proven: {error}"
    finally:
        progress.finish()

    def told(key: tuple[str, str]) -> dict[str, Any]:
        proof, broken = said.get(key, (other, False))
        return {"proof": proof, "broken": broken}

    patches = tuple(
        replace(p, **told(k)) if (k := (drift.upstream, p.feature)) in wanted else p for p in release.patches
    )
    callers = tuple(replace(c, **told(k)) if (k := (c.upstream, c.feature)) in wanted else c for c in release.callers)
    return replace(release, patches=patches, callers=callers)


def _workspace(app: App, workspace: Path, output: str) -> int:
    from patchctl.blame.line_owners import drift_of_workspace
    from patchctl.findings import Report, Shown
    from patchctl.report.drift import edited_findings, edited_output, edited_text

    trees = drift_of_workspace(workspace)
    shown = Shown(Report(edited_findings(trees)), "drift", workspace)
    print_findings(app, output, shown, edited_output(trees), lambda style: edited_text(trees, style))
    return FINDINGS if any(tree.files or tree.problem for tree in trees) else DONE
