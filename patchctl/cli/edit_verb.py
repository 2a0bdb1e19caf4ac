"""patchctl edit."""

from __future__ import annotations

from pathlib import Path

import click

from patchctl.cli.app import App, complete_upstream, find_stack, json_option, release_option
from patchctl.cli.sources import Sources, source_options


@click.command("edit")
@click.argument("name", metavar="UPSTREAM[/STACK]", shell_complete=complete_upstream)
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where to [default: edit/UPSTREAM-STACK].",
)
@release_option
@source_options
@json_option("patchctl.report.stacks:EditOutput")
@click.pass_obj
def command(app: App, name: str, folder: Path | None, sources: Sources, as_json: bool) -> None:
    """Open a stack as commits in a work tree, to change it with git.

    One commit a patch, on a branch of an ordinary repository: amend, reorder, drop and add commits as you like, then
    write them back with `patchctl export`. A new commit becomes a patch when its message ends with the trailers Feature,
    Switch, Upstream-Status and Drop-When; its new files become carried files.

    \b
    Examples:
      patchctl edit verl
      patchctl edit vllm-ascend --dir work
    """
    from patchctl.report.stacks import EditOutput
    from patchctl.workspace.edit import export_command, open_stack

    stack = find_stack(app.distribution, name)
    opened = open_stack(app.distribution, stack, folder, sources.options(), app.progress(as_json))
    result = opened.result
    data = EditOutput(stack.upstream, stack.name, opened.folder, result.base_commit, result.tip_commit)
    lines = [
        f"{stack.upstream}/{stack.name}: {len(result.steps)} commits on {result.base_commit[:12]} in {opened.folder}",
        f"change them with git, then: {export_command(stack, opened.folder)}",
    ]
    app.emit("edit", data, lambda style: lines, as_json)
