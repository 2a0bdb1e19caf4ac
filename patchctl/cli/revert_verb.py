"""patchctl revert."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from patchctl.cli.app import App, json_option, workspace_option
from patchctl.terminal.text import Style


@click.command("revert")
@workspace_option
@click.option("--stash", is_flag=True, help="Keep local edits on a branch of their tree instead of stopping at them.")
@json_option("patchctl.report.trees:RevertOutput")
@click.pass_obj
def command(app: App, workspace: Path, stash: bool, as_json: bool) -> None:
    """Take a workspace back to the unpatched base, byte for byte.

    Needs no network, no cache and no distribution: the workspace holds everything. Checkouts that were patched with
    --in-place get their files back and are then forgotten.

    \b
    Examples:
      patchctl revert
      patchctl revert --workspace workspace --stash
    """
    from patchctl.report.trees import revert_output
    from patchctl.workspace.apply import revert

    outcome = revert(workspace.absolute(), stash=stash)

    def text(style: Style) -> Iterable[str]:
        if outcome.finished:
            yield style.note(f"finished an interrupted {outcome.finished} first")
        if outcome.undone:
            yield style.note(f"took an interrupted {outcome.undone} back first: its objects were damaged")
        for name in outcome.changed:
            tree = outcome.state.trees.get(name)
            yield f"{name:<12} {style.good('back at its base')} {tree.base_commit[:12] if tree else ''}".rstrip()
        if not outcome.changed:
            yield "every tree is at its base already"
        yield from (f"{n:<12} edits kept on branch {branch}" for n, branch in outcome.stashed.items())

    app.emit("revert", revert_output(outcome, workspace.absolute()), text, as_json)
