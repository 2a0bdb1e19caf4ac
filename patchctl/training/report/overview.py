"""Recipes as a row each, for the report of a distribution. Computes nothing."""

from __future__ import annotations

from patchctl.catalog.overview import RecipeRow
from patchctl.manifest.distribution import Distribution
from patchctl.training.recipes.read import read_recipes
from patchctl.training.recipes.resolve import NODES, PER_NODE, resolve


def recipe_rows(dist: Distribution) -> list[RecipeRow]:
    """Every recipe that can be run. Raises InvalidManifest."""
    rows = []
    recipes = [read_recipes(one) for one in dist.each_release()]
    for run in (resolve(of_release, *key) for of_release in recipes for key in of_release.runnable()):
        nodes, per_node = (int(run.sizes[name].value) for name in (NODES, PER_NODE))
        row = RecipeRow(
            run.profile,
            run.name,
            run.summary,
            nodes,
            per_node,
            run.entry.module,
            run.needs,
            tuple(run.limits),
            run.release,
        )
        rows.append(row)
    return rows
