"""patchctl repair."""

from __future__ import annotations

from pathlib import Path

import click

from patchctl.cli.app import App, json_option, workspace_option


@click.command("repair")
@workspace_option
@click.option("--dry-run", is_flag=True, help="Say what is wrong, and write nothing.")
@json_option("patchctl.report.trees:RepairOutput")
@click.pass_obj
def command(app: App, workspace: Path, dry_run: bool, as_json: bool) -> None:
    """Make a clean base of a workspace that was interrupted or damaged, and lose nothing.

    Says what it sees: an interrupted run, a journal or state that cannot be read, a repository that is damaged or gone, locks
    of a git that is dead. Files of yours go to a new folder `repair-N` in the workspace, which it names; staged content and
    commits go to branches of the tree. A tree that neither the workspace nor the cache can give goes there whole; a checkout
    that was patched with --in-place then stays as it is. A healthy workspace stays as it is.

    \b
    Examples:
      patchctl repair --dry-run
      patchctl repair --workspace workspace
    """
    from patchctl.report.trees import RepairOutput, repair_text
    from patchctl.workspace.apply import writing
    from patchctl.workspace.repair import preview_repair, repair

    workspace = workspace.absolute()
    with writing(workspace):
        result = preview_repair(workspace) if dry_run else repair(workspace, app.cache_folder)

    app.emit("repair", RepairOutput(result, dry_run), lambda s: repair_text(result, s, dry_run=dry_run), as_json)
