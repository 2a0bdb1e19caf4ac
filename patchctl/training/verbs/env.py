"""patchctl env."""

from __future__ import annotations

import click

from patchctl.cli.app import App, json_option
from patchctl.training.verbs.options import (
    RecipeArguments,
    RecipeBook,
    profile_of_recipe,
    recipe_option,
    recipe_overrides,
)


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
@recipe_overrides
@json_option("patchctl.training.report.recipes:EnvOutput")
@click.pass_obj
def command(app: App, arguments: RecipeArguments, output: str, as_json: bool) -> None:
    """Print the environment variables of a recipe, the same for every node of a run.

    What each node sets for itself (its network interface, the address of the first node) stands there as a comment.

    \b
    eval "$(patchctl env --profile qwen3-235b --recipe grpo --nodes 8)"
    patchctl env -p qwen3-32b -r gspo --format dotenv > run.env

    Exit code 2 for a recipe that breaks a rule.
    """
    from patchctl.training.recipes.shell import environment_dotenv, environment_sh
    from patchctl.training.report.recipes import env_output

    run = RecipeBook(app).valid_run(arguments)
    lines = environment_dotenv if output == "dotenv" else environment_sh
    app.emit("env", env_output(run), lambda _: lines(run), as_json or output == "json")
