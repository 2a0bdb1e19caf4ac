"""patchctl new."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from patchctl.cli.app import App, complete_upstream, find_stack, json_option, release_option
from patchctl.cli.sources import Sources, source_options
from patchctl.terminal.text import Style


@click.command("new")
@click.argument("feature", metavar="FEATURE")
@click.option(
    "--stack",
    "name",
    required=True,
    metavar="UPSTREAM[/STACK]",
    shell_complete=complete_upstream,
    help="The stack that gets the patch.",
)
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where to open the stack [default: edit/UPSTREAM-STACK].",
)
@release_option
@source_options
@json_option("patchctl.prove.new:NewPatch")
@click.pass_obj
def command(
    app: App,
    feature: str,
    name: str,
    folder: Path | None,
    sources: Sources,
    as_json: bool,
) -> None:
    """Begin a patch: its header as a commit on the stack, and its test, probe and mutation, to be filled in.

    Opens the stack as `patchctl edit` does, with one commit more, which is empty: change files, `git add` them and `git
    commit --amend`. The test fails until it says what it wants. What a person has to write is marked TODO(new); `verify`
    names it as long as it waits. Files that are there are kept. docs/writing-patches.md has the whole way.

    \b
    Examples:
      patchctl new its_name --stack verl
      patchctl new its_name --stack vllm-ascend --dir work
    """
    from patchctl.prove.new import new_patch
    from patchctl.workspace.edit import export_command

    with app.writing() as dist:
        stack = find_stack(dist, name)
        made = new_patch(dist, stack, feature, folder, sources.options(), app.progress(as_json))

    def text(style: Style) -> Iterable[str]:
        yield f"{stack.upstream}/{stack.name}: {feature} begins with an empty commit in {made.folder}"
        yield from (f"written  {path}" for path in made.written)
        yield from (f"kept     {path}, which was there" for path in made.kept)
        if not (made.written or made.kept):
            yield "no test, probe and mutation: the distribution has its tests elsewhere, or none"
        yield f"change files there, `git add` them, `git commit --amend`, then: {export_command(stack, made.folder)}"

    app.emit("new", made, text, as_json)
