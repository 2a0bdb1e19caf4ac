"""What `cluster verify` and `cluster status` compare every node's environment with: a recipe, or the variables of all."""

from __future__ import annotations

from patchctl.cli.app import App
from patchctl.cluster.request import ExpectedEnvironment
from patchctl.training.recipes.conditions import names_in
from patchctl.training.recipes.read import SHARED, Recipes
from patchctl.training.recipes.resolve import RecipeRun
from patchctl.training.verbs.options import RecipeArguments, RecipeBook

_ENV = "env."


def environment_of_recipe(app: App, profile: str | None, recipe: str | None) -> ExpectedEnvironment:
    """A recipe's environment; without one, the names of all variables that matter in the profile. A path of a recipe is each
    machine's own, and is compared among the nodes. Raises WrongUse, InvalidManifest, BadManifest."""
    book = RecipeBook(app)
    if recipe is None:
        return ExpectedEnvironment(profile, tuple(variable_names(book.recipes, profile, None)))
    run = book.valid_run(RecipeArguments(profile, recipe))
    return ExpectedEnvironment(
        run.profile,
        tuple(variable_names(book.recipes, run.profile, run)),
        {n: v.value for n, v in run.environment.items() if v.path is None},
        dict(run.of_each_node),
        (run.entry.upstream, run.entry.folder or "."),
    )


def variable_names(recipes: Recipes, profile: str | None, run: RecipeRun | None) -> list[str]:
    """The variables that the rules name, and the recipe; without one, every recipe of the profile."""
    names: dict[str, None] = {}
    if run is not None:
        names.update(dict.fromkeys([*run.environment, *run.of_each_node]))
    else:
        for (folder, _), loaded in recipes.files.items():
            if folder.rpartition("/")[2] in (SHARED, profile):
                names.update(dict.fromkeys(loaded.value.environment))
    for rule in recipes.rules.value.rules.values() if recipes.rules else ():
        for condition in (rule.when, rule.must):
            found = names_in(condition) if condition is not None else ()
            names.update(dict.fromkeys(n.removeprefix(_ENV) for n in found if n.startswith(_ENV)))
    return list(names)
