"""patchctl recipe: list, show, command, env and diff; patchctl train."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from patchctl.cli.app import App, complete_profile, json_option, release_option, verbose_option, workspace_option
from patchctl.cli.tool_verbs import run_script
from patchctl.errors import DONE, FINDINGS
from patchctl.training.verbs import options

if TYPE_CHECKING:
    from pathlib import Path

    from patchctl.training.recipes.resolve import RecipeRun


@click.group("recipe")
def command() -> None:
    """Look at recipes: what they run, with which values, and where each value comes from.

    A recipe is one way to train in a profile: environment, overrides of the framework's configuration, data, and the
    framework's own entry module. Its values name who gives them; those that no document gives are marked as ours.

    \b
    patchctl recipe list
    patchctl recipe show qwen3-235b/grpo
    patchctl recipe command qwen3-235b/grpo --nodes 8 --path model=/data/Qwen3-235B-A22B > run.sh
    patchctl recipe env qwen3-235b/grpo --nodes 8 > run.env
    patchctl recipe diff qwen3-8b/dapo qwen3-8b/grpo
    """


@command.command("list", short_help="List them.")
@click.option(
    "--profile", "-p", metavar="NAME", shell_complete=complete_profile, help="Only the recipes of this profile."
)
@release_option
@json_option("patchctl.training.report.recipes:RecipesOutput")
@click.pass_obj
def list_(app: App, profile: str | None, as_json: bool) -> None:
    """List the recipes: profile, name, release, nodes and devices, entry module and what it trains.

    Without --release those of every release, the newest first.

    \b
    Examples:
      patchctl recipe list
      patchctl recipe list --profile qwen3-32b
    """
    from patchctl.training.recipes.resolve import every_run
    from patchctl.training.report.recipes import list_text, recipes_output

    dist = app.distribution
    if profile is not None:
        dist.profile(profile)
    runs = every_run(dist, profile)
    app.emit("recipe.list", recipes_output(runs), lambda style: list_text(runs, style), as_json)


@command.command("show", short_help="Show one; -v adds each value and where it comes from.")
@options.recipe_argument
@options.profile_of_recipe
@options.recipe_overrides
@verbose_option("every value with its file and line, who gives it and why; limits in full, paths and data")
@json_option("patchctl.training.report.recipes:RecipeOutput")
@click.pass_obj
def show(app: App, arguments: options.RecipeArguments, verbose: bool, as_json: bool) -> int:
    """Show a recipe with all that it inherits: what it runs and needs, and with -v every value and its source.

    What it comes to: steps, checkpoints that are kept and their size, answers of validation against those of training.
    --size train_rows=N and --size validation_rows=N say how many rows your data has.

    Rules that it breaks come first; exit code 1 with one.

    \b
    Examples:
      patchctl recipe show qwen3-235b/grpo
      patchctl recipe show qwen3-235b/grpo --nodes 16 -v
    """
    from patchctl.training.report.recipes import recipe_output, show_text

    book = options.RecipeBook(app)
    run = book.run(arguments)
    broken, totals = book.broken(run), book.totals(run)
    data = recipe_output(run, broken, totals)
    practice = app.distribution.practice
    documents = practice.documents if practice else {}
    text = partial(show_text, run, broken, totals, documents, verbose=verbose)
    app.emit("recipe.show", data, text, as_json)
    return FINDINGS if broken else DONE


@command.command("command", short_help="Print the exact command.")
@options.recipe_argument
@options.profile_of_recipe
@options.recipe_overrides
@workspace_option
@json_option("patchctl.training.report.recipes:CommandOutput")
@click.pass_obj
def command_(app: App, arguments: options.RecipeArguments, workspace: Path, as_json: bool) -> None:
    """Print the exact command: working directory, entry module, one override a line, quoted for the shell.

    Paths that are not given are read from variables (MODEL_PATH, TRAIN_FILE, ...) when it runs, and refused by name where
    they are not set. WORKSPACE is the folder that `patchctl apply` wrote [default: workspace]; where --workspace was
    patched in place, the script begins in the tree that it names. Arguments of the printed script come last, so that they win.

    Exit code 2 for a recipe that breaks a rule.

    \b
    Examples:
      patchctl recipe command qwen3-235b/grpo > run.sh
      patchctl recipe command qwen3-235b/grpo --nodes 8 --path model=/data/Qwen3-235B-A22B
    """
    from patchctl.training.recipes.shell import command_lines
    from patchctl.training.report.recipes import command_output
    from patchctl.workspace.state import load_state

    run, state = options.RecipeBook(app).valid_run(arguments), load_state(workspace)
    tree = state.trees.get(run.entry.upstream) if state else None
    app.emit("recipe.command", command_output(run, tree), lambda _: command_lines(run, tree), as_json)


@command.command("env", short_help="Print the environment variables.")
@options.recipe_argument
@options.profile_of_recipe
@click.option(
    "--format",
    "output",
    type=click.Choice(["sh", "dotenv", "json"]),
    default="sh",
    show_default=True,
    help="sh: lines to eval or source; dotenv: NAME=VALUE lines.",
)
@options.recipe_overrides
@json_option("patchctl.training.report.recipes:EnvOutput")
@click.pass_obj
def env(app: App, arguments: options.RecipeArguments, output: str, as_json: bool) -> None:
    """Print the environment variables of a recipe, the same for every node of a run.

    What each node sets for itself (its network interface, the address of the first node) stands in the shell's form as a comment.

    \b
    eval "$(patchctl recipe env qwen3-235b/grpo --nodes 8)"
    patchctl recipe env qwen3-32b/gspo --format dotenv > run.env

    Exit code 2 for a recipe that breaks a rule.
    """
    from patchctl.training.recipes.shell import environment_dotenv, environment_sh
    from patchctl.training.report.recipes import env_output

    run = options.RecipeBook(app).valid_run(arguments)
    lines = environment_dotenv if output == "dotenv" else environment_sh
    app.emit("recipe.env", env_output(run), lambda _: lines(run), as_json or output == "json")


@command.command("diff", short_help="Say what differs between two.")
@click.argument("one", metavar="[PROFILE/]RECIPE[@RELEASE]", shell_complete=options.complete_recipe)
@click.argument("other", metavar="[PROFILE/]RECIPE[@RELEASE]", shell_complete=options.complete_recipe)
@options.profile_of_recipe
@release_option
@json_option("patchctl.training.report.recipes:DiffOutput")
@click.pass_obj
def diff(app: App, one: str, other: str, profile: str | None, as_json: bool) -> None:
    """Say what differs between two recipes: computed values, and which of them only one has.

    They may belong to two profiles, and to two releases: RECIPE@RELEASE names another release than --release.

    \b
    Examples:
      patchctl recipe diff qwen3-8b/dapo qwen3-8b/grpo
      patchctl recipe diff qwen3-235b/dapo qwen3-235b/grpo
    """
    from patchctl.training.recipes.resolve import differences
    from patchctl.training.report.recipes import diff_output, diff_text

    runs = _run_on(app, profile, one), _run_on(app, profile, other)
    rows = differences(*runs)
    app.emit("recipe.diff", diff_output(*runs, rows), lambda style: diff_text(*runs, rows, style), as_json)


def _run_on(app: App, profile: str | None, named: str) -> RecipeRun:
    """RECIPE, or RECIPE@RELEASE on that release."""
    recipe, at, release = named.partition("@")
    chosen = App(app.root, app.cache, app.color, release) if at else app
    return options.RecipeBook(chosen).run(options.RecipeArguments(profile, recipe))


@click.command("train", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def train(app: App, arguments: tuple[str, ...]) -> None:
    """Check the machine, load the environment, wait for the cluster, and train a recipe: the distribution's train.sh.

    \b
    patchctl train PROFILE RECIPE --nodes 8 --dry-run
    patchctl script train.sh --help                        every option
    """
    run_script(app, "train.sh", arguments)
