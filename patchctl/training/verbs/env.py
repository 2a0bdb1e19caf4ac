"""patchctl env."""

from __future__ import annotations

import click

from patchctl.cli.app import App, json_option
from patchctl.training.verbs.options import Asked, RecipeBook, profile_of_recipe, recipe_option, said_instead


@click.command("env")
@profile_of_recipe
@recipe_option
@click.option(
    "--format",
    "output",
    type=click.Choice(["sh", "dotenv", "json"]),
    default="sh",
    show_default=True,
    help="sh: lines to eval or source; dotenv: NAME=VALUE lines.",
)
@said_instead
@json_option
@click.pass_obj
def command(app: App, asked: Asked, output: str, as_json: bool) -> None:
    """Print the environment variables of a recipe, the same for every node of a run.

    What each node sets for itself (its network interface, the address of the first node) stands there as a comment.

    \b
    eval "$(patchctl env --profile qwen3-235b --recipe grpo --nodes 8)"
    patchctl env -p qwen3-32b -r gspo --format dotenv > run.env

    Exit code 2 for a recipe that breaks a rule.
    """
    from patchctl.training.recipes.render import environment_dotenv, environment_sh
    from patchctl.training.recipes.report import env_json

    run = RecipeBook(app).sound(asked)
    lines = environment_dotenv if output == "dotenv" else environment_sh
    app.emit("env", env_json(run), lambda _: lines(run), as_json or output == "json")
