"""patchctl bisect."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from patchctl.cli.app import App, json_option, profile_option
from patchctl.cli.sources import Sources, source_options
from patchctl.errors import DONE, FINDINGS

if TYPE_CHECKING:
    from patchctl.blame.bisect import BisectRun


@click.command("bisect", context_settings={"ignore_unknown_options": True})
@profile_option
@click.option("--without", multiple=True, metavar="FEATURE", help="Leave this feature out of every run. Repeatable.")
@source_options
@json_option("patchctl.report.proving:BisectOutput")
@click.argument("cmd", nargs=-1, required=True, metavar="-- CMD...", type=click.UNPROCESSED)
@click.pass_obj
def command(
    app: App, profile: str, without: tuple[str, ...], sources: Sources, as_json: bool, cmd: tuple[str, ...]
) -> int:
    """Find the patch of a profile that breaks a command, by halving over the patches of all its stacks.

    CMD runs in a temporary workspace (the current folder; its name is in PATCHCTL_WORKSPACE too), with the patched trees first
    where Python looks: 0 is good, 125 cannot be told, all else is bad. It runs with all patches, with none, and then with about
    log2 of them; no run has a patch without what that requires. What CMD says goes to standard error. No workspace of
    yours is touched.

    Exit code 1 when the command succeeds with all, or fails without any patch.

    \b
    Examples:
      patchctl bisect --profile qwen3-8b -- python -m pytest -x test_rollout.py
      patchctl bisect --profile qwen3-8b --without sam_proposer -- python train.py
    """
    from patchctl.blame.bisect import Bisection
    from patchctl.report.proving import bisect_output, bisect_text, step_text

    def tell(step: BisectRun, units: int) -> None:
        print(step_text(step, units), file=sys.stderr, flush=True)

    dist = app.distribution
    chosen = dist.profile(profile)
    search = Bisection(dist, chosen, without, sources.options(), app.progress(as_json), tell)
    found = search.search(cmd)
    app.emit("bisect", bisect_output(found, chosen), lambda style: bisect_text(found, style), as_json)
    return DONE if found.broken else FINDINGS
