"""patchctl bump."""

from __future__ import annotations

import click

from patchctl.cli.app import App, complete_release, complete_upstream, json_option
from patchctl.cli.sources import Sources, source_options


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

    Exit code 0 if every patch of the new stacks is proven, 20 if someone has to work, 4 at a stop.

    \b
    Examples:
      patchctl bump --dry-run
      patchctl bump RELEASE --to NEW --only vllm-ascend
      patchctl bump --continue
    """
    from patchctl.cli.bump_run import begin, end_or_go_on

    options = sources.options()
    if action is None:
        return begin(app, release, to, only, options, dry_run=dry_run, prove=not no_prove, as_json=as_json)
    return end_or_go_on(app, action, bool(release or to or only), options, as_json)
