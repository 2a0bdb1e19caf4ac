"""patchctl outdated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from patchctl.cli.app import App, complete_upstream, find_stack, json_option, release_option
from patchctl.cli.sources import Sources, source_options
from patchctl.errors import DONE, FINDINGS, SourceUnavailable

if TYPE_CHECKING:
    from patchctl.manifest.distribution import Distribution
    from patchctl.manifest.types import Stack


@click.command("outdated")
@click.argument("stacks", nargs=-1, metavar="[UPSTREAM[/STACK]]...", shell_complete=complete_upstream)
@click.option("--no-drift", is_flag=True, help="Name what is newer, and try no patch on it: nothing is downloaded.")
@click.option("--skip-unavailable", is_flag=True, help="End as the other upstreams do if one of them cannot be asked.")
@release_option
@source_options
@json_option("patchctl.report.drift:OutdatedOutput")
@click.pass_obj
def command(
    app: App,
    stacks: tuple[str, ...],
    no_drift: bool,
    skip_unavailable: bool,
    sources: Sources,
    as_json: bool,
) -> int:
    """Say which upstreams have something newer than the pins, and what moving there would take.

    A line for the newest release, the newest candidate after it and the head of the branch that is followed, with one
    word: exact (every patch applies as it is), moved (all arrive), conflicts (someone has to work) or taken upstream.
    Indexes are asked for versions that run on the release's Python. Then the revisions that the pinned files name of
    other upstreams, as in an image's Dockerfile.

    Exit code 1 if something is newer, 0 if not, 3 if an upstream cannot be asked.

    \b
    Examples:
      patchctl outdated                          every upstream of the release
      patchctl outdated verl --no-drift --json   names alone, for a job
    """
    from patchctl.drift.drift import Drifting
    from patchctl.drift.outdated import outdated
    from patchctl.report.drift import OutdatedOutput, outdated_text

    dist = app.distribution
    chosen = list({s.upstream: s for s in [find_stack(dist, name) for name in stacks] or _of_release(dist)}.values())
    release = next((r for r in dist.releases.values() if all(r.stacks.get(s.upstream) == s.name for s in chosen)), None)
    python = release.python if release else None
    drifting = Drifting(dist, sources.options(), app.progress(as_json))
    found = outdated(drifting, chosen, python, drift=not no_drift)
    data = OutdatedOutput(release.name if release else None, python, found)
    app.emit("outdated", data, lambda style: outdated_text(data, style), as_json)
    if any(one.unavailable for one in found) and not skip_unavailable:
        return SourceUnavailable.code
    return FINDINGS if any(one.newer for one in found) else DONE


def _of_release(dist: Distribution) -> list[Stack]:
    """Every upstream's stack on the release in force."""
    from patchctl.catalog.chosen_release import stack_taken

    known = {s.upstream for s in dist.stacks.values() if dist.of_named_release(s)}
    return [stack_taken(dist, upstream, lambda line: None) for upstream in dist.upstreams if upstream in known]
