"""patchctl train."""

from __future__ import annotations

import click

from patchctl.cli.app import App
from patchctl.cli.script_verb import run_script


@click.command("train", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def command(app: App, arguments: tuple[str, ...]) -> None:
    """Check the machine, load the environment, wait for the cluster, and train a recipe: the distribution's train.sh.

    \b
    patchctl train PROFILE RECIPE --nodes 8 --dry-run
    patchctl script train.sh --help                        every option
    """
    run_script(app, "train.sh", arguments)
