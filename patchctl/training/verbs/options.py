"""What the verbs below `recipe` and `preflight` share: which recipe, what the user says instead of it, and the refusal of one that
breaks a rule."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any

import click

from patchctl.cli.app import App, complete_profile, of_release, release_option, split_pair
from patchctl.errors import BadManifest, WrongUse
from patchctl.language import joined, message

if TYPE_CHECKING:
    from patchctl.training.recipes.read import Recipes
    from patchctl.training.recipes.resolve import Given, RecipeRun
    from patchctl.training.recipes.rules import Broken
    from patchctl.training.recipes.totals import Totals

_LONGEST_LIST = 5


@dataclass(frozen=True)
class RecipeArguments:
    """A recipe as the command line names it."""

    profile: str | None
    recipe: str | None
    nodes: int | None = None
    settings: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()


class RecipeBook:
    """The recipes of this run's distribution, resolved and checked when they are asked for."""

    def __init__(self, app: App) -> None:
        self._app = app

    @cached_property
    def recipes(self) -> Recipes:
        from patchctl.training.recipes.read import read_recipes

        return read_recipes(self._app.distribution)

    def run(self, arguments: RecipeArguments) -> RecipeRun:
        """The recipe as it would run. Raises WrongUse for one that is not there."""
        from patchctl.training.recipes.resolve import resolve

        profile, recipe = self.names(arguments.profile, arguments.recipe)
        return resolve(self.recipes, profile, recipe, _given(arguments))

    def names(self, profile: str | None, recipe: str | None) -> tuple[str, str]:
        """--profile and --recipe, or --recipe PROFILE/RECIPE. Raises WrongUse."""
        if recipe is None:
            raise WrongUse("no recipe", hint="name one with --recipe NAME, see `patchctl recipe list`")
        folder, slash, name = recipe.partition("/")
        if slash and profile not in (None, folder):
            raise WrongUse(f"--profile {profile} and the recipe {recipe} are of two profiles")
        chosen = folder if slash else profile
        if chosen is None:
            raise self._half_named(recipe)
        self._app.distribution.profile(chosen)
        return chosen, name if slash else recipe

    def _half_named(self, name: str) -> WrongUse:
        """Of one word: it is a profile, whose recipes can be named, or a recipe that several profiles may have."""
        if name not in self._app.distribution.profiles:
            hint = message("name the profile too: --profile NAME, or PROFILE/RECIPE")
            return WrongUse(message("which profile? {recipe} is the name of a recipe alone", recipe=name), hint=hint)
        recipes = self.recipes.of(name)
        if not recipes:
            return WrongUse(
                f"the profile {name} has no recipes", hint="`patchctl recipe list` names those that there are"
            )
        what = message("which recipe? {profile} has: {recipes}", profile=name, recipes=joined(recipes))
        return WrongUse(what, hint=message("name it PROFILE/RECIPE, such as {example}", example=f"{name}/{recipes[0]}"))

    def broken(self, run: RecipeRun) -> list[Broken]:
        """Every rule that the recipe does not keep, and every key that its configuration does not have."""
        from patchctl.training.recipes.check import all_broken, features_and_switches

        dist = self._app.distribution
        return [*all_broken(dist, self.recipes, run, *features_and_switches(dist, run.profile))]

    def totals(self, run: RecipeRun) -> Totals:
        """What the run comes to, with checkpoints of the size that the profile's model has."""
        from patchctl.training.models import model_of, read_model, read_models
        from patchctl.training.preflight.memory import bytes_of_checkpoint
        from patchctl.training.recipes.rules import facts_of
        from patchctl.training.recipes.totals import totals_of
        from patchctl.training.recipes.types import Rules

        rules = self.recipes.rules.value if self.recipes.rules else Rules(1, {})
        published = model_of(read_models(self._app.distribution), run.profile, run.name)
        if published is None:
            return totals_of(run, rules)
        return totals_of(run, rules, bytes_of_checkpoint(read_model(published[1].config), facts_of(run, rules)))

    def valid_run(self, arguments: RecipeArguments) -> RecipeRun:
        """As `run`; raises BadManifest, with every rule that is broken, unless it keeps all of them."""
        run = self.run(arguments)
        broken = self.broken(run)
        if broken:
            first, rest = broken[0], broken[1:_LONGEST_LIST]
            lines = [f"{run.title} breaks {first.rule}: {first}"]
            lines += [f"{b.where}: {run.title} breaks {b.rule}: {b}" for b in rest]
            more = len(broken) - len(lines)
            lines += [f"... and {more} more rules"] if more else []
            hint = f"`patchctl recipe show -v {run.title_on_release}{run.repeated()}` tells where each value comes from"
            raise BadManifest("\n".join(lines), where=first.where, hint=hint)
        return run


def _given(arguments: RecipeArguments) -> Given:
    from patchctl.training.recipes.resolve import NODES, Given

    sizes = _pairs(arguments.sizes, "--size", "--size batch=256")
    if arguments.nodes is not None:
        sizes[NODES] = str(arguments.nodes)
    settings = _pairs(arguments.settings, "an override", "trainer.total_epochs=1")
    settings = {key: value.strip() for key, value in settings.items()}  # as Hydra does
    paths = _pairs(arguments.paths, "--path", "--path model=/data/model")
    for name, path in paths.items():  # training starts in another folder
        if name == "checkpoints" or os.path.exists(path):
            # A model may also be a name on a hub; checkpoints need not be there yet.
            paths[name] = os.path.abspath(path)
    return Given(sizes, settings, paths)


def _pairs(texts: Iterable[str], option: str, example: str) -> dict[str, str]:
    try:
        return dict(split_pair(text, option) for text in texts)
    except WrongUse as error:
        raise WrongUse(error.what, hint=f"for example {example}") from error


def complete_recipe(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion: the recipes of the profile that is named already, else PROFILE/RECIPE of all."""
    try:
        params = ctx.find_root().params
        book = RecipeBook(App(root=params.get("root"), cache=params.get("cache")))
        profile = ctx.params.get("profile")
        names = book.recipes.of(profile) if profile else ["/".join(key) for key in book.recipes.runnable()]
        return [name for name in names if name.startswith(incomplete)]
    except Exception:  # a completion must never print into the user's command line
        return []


_OVERRIDES = (
    click.option(
        "--nodes", type=click.IntRange(min=1), metavar="N", help="How many nodes run it [default: the recipe's]."
    ),
    click.option("--size", "sizes", multiple=True, metavar="NAME=N", help="Another size of the recipe. Repeatable."),
    release_option,
    click.option(
        "--path",
        "paths",
        multiple=True,
        metavar="NAME=PATH",
        help="Where a file of the recipe lies, instead of its variable. Repeatable.",
    ),
    click.argument("settings", nargs=-1, metavar="[KEY=VALUE]..."),
)


def recipe_overrides(command: Callable[..., Any]) -> Callable[..., Any]:
    """--nodes, --size, --release, --path and KEY=VALUE; with profile and recipe they reach the command as one `arguments`."""

    @wraps(command)
    def gathered(*args: Any, **options: Any) -> Any:
        named = {one.name: options.pop(one.name) for one in fields(RecipeArguments)}
        return command(*args, arguments=RecipeArguments(**named), **options)

    for option in reversed(_OVERRIDES):
        option(gathered)
    return gathered


profile_of_recipe = click.option(
    "--profile", "-p", metavar="NAME", shell_complete=complete_profile, help="The profile, see `patchctl list`."
)
recipe_option = click.option(
    "--recipe",
    "-r",
    required=True,
    metavar="NAME",
    callback=of_release,
    shell_complete=complete_recipe,
    help="The recipe, or PROFILE/RECIPE, or with @RELEASE that of a release.",
)
recipe_argument = click.argument(
    "recipe", metavar="[PROFILE/]RECIPE[@RELEASE]", callback=of_release, shell_complete=complete_recipe
)
