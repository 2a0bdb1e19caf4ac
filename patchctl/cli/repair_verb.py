"""patchctl repair."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from patchctl.cli.app import App, json_option, workspace_option
from patchctl.terminal.style import Style

if TYPE_CHECKING:
    from patchctl.workspace.repair import Repair


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
    that was patched with --into then stays as it is. A healthy workspace stays as it is.
    """
    from patchctl.report.trees import RepairOutput
    from patchctl.workspace.apply import writing
    from patchctl.workspace.repair import look_at, repair

    workspace = workspace.absolute()
    with writing(workspace):
        result = look_at(workspace) if dry_run else repair(workspace, app.cache_folder)

    app.emit("repair", RepairOutput(result, dry_run), lambda s: _text(result, s, dry_run=dry_run), as_json)


def _text(result: Repair, style: Style, *, dry_run: bool) -> Iterator[str]:
    from patchctl.terminal.text import visible_line

    for seen in result.found:
        yield f"{style.bad(seen.kind)}  {visible_line(seen.message)}  ({visible_line(seen.place)})"
    words = {
        "base": style.good("at its base"),
        "aside": style.note("moved aside whole: it cannot be made from here"),
        "left": style.note("left as it is, and no longer ours"),
        "gone": "no longer there",
    }
    for tree in result.trees:
        yield f"{tree.name:<12} {words[tree.outcome]}  in {visible_line(tree.folder)}"
    yield from (f"kept aside   {visible_line(path)}" for path in result.kept)
    if result.healthy:
        yield f"{visible_line(result.workspace)} is healthy: nothing was changed"
    elif dry_run:
        yield "nothing was changed: repair without --dry-run mends it"
