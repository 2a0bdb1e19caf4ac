"""The generated pages about recipes and the practice's documents."""

from __future__ import annotations

from collections.abc import Sequence

from patchctl.catalog.pages import Entry
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.problems import InvalidManifest
from patchctl.training.practice import coverage, parameters
from patchctl.training.practice.check import read_coverage, read_parameters
from patchctl.training.recipes.read import read_recipes


def practice_pages(dist: Distribution, entries: Sequence[Entry]) -> dict[str, str]:
    """Text by path below the root; none while what they are made from cannot be read."""
    try:
        recipes, items, explained = read_recipes(dist), read_coverage(dist.root), read_parameters(dist.root)
    except InvalidManifest:
        return {}
    found = {}
    if recipes.files:
        named = {name: e.page for e in entries for name in (e.patch.feature, f"{e.patch.feature}@{e.stack.upstream}")}
        found[coverage.PAGE] = coverage.coverage_page(
            recipes.files, recipes.rules, dist.practice, items.value if items else None, named
        )
    if explained is not None:
        found[parameters.PAGE] = parameters.parameters_page(explained.value, recipes.files)
    return found
