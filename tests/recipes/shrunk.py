"""A shrunk recipe: what `patchctl recipe command` prints of one, with the sizes of sizes.yaml in place of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from releases import OLDEST

from patchctl.catalog.chosen_release import on_release
from patchctl.manifest.distribution import Distribution
from patchctl.training.recipes.read import Key, Recipes, read_recipes
from patchctl.training.recipes.resolve import Given, RecipeRun, bare, resolve

REPO = Path(__file__).resolve().parents[2]
TABLE: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "sizes.yaml").read_text(encoding="utf-8"))
TRAINED_IN_PARALLEL = ("tp", "pp", "cp", "sp")


@cache
def recipes(release: str = OLDEST.name) -> Recipes:
    """Those of a release."""
    return read_recipes(on_release(Distribution.load(REPO), release, print))


def shipped(known: Recipes) -> list[Key]:
    """Every recipe but the demo's, which is small itself and has a target of its own."""
    return [key for key in known.runnable() if key[0] in TABLE["models"]]


@dataclass(frozen=True)
class Beside:
    """What a run is given beside a recipe that is not the recipe's: overrides, variables, and the model of another profile."""

    overrides: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None


NOTHING = Beside()


@dataclass(frozen=True)
class Shrunk:
    """A recipe and what a shrunk run of it is given instead of its own."""

    recipe: RecipeRun
    given: Given
    left_out: frozenset[str] = frozenset()
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        return int(self.given.sizes["devices_per_node"])

    def devices(self, known: Recipes) -> int:
        """The ranks, and the devices that engines have of their own."""
        return self.run(known).all_devices

    def run(self, known: Recipes) -> RecipeRun:
        run = resolve(known, self.recipe.profile, self.recipe.name, self.given)
        left_out = {*TABLE["left_out"], *self.left_out}
        overrides = {key: value for key, value in run.overrides.items() if bare(key) not in left_out}
        environment = {name: value for name, value in run.environment.items() if name not in left_out}
        return replace(run, overrides=overrides, environment=environment)


def shrunk(
    known: Recipes,
    key: Key,
    paths: Mapping[str, str],
    other: Mapping[str, str] | None = None,
    left_out: frozenset[str] = frozenset(),
    more: Mapping[str, str] | None = None,
) -> Shrunk:
    """The recipe `key` with the table's sizes and these files; `other` are sizes that somebody asks for instead, `left_out` and
    `more` keys that a run has not, or has besides."""
    own = resolve(known, *key)
    sizes = {name: str(one["value"]) for name, one in TABLE["sizes"].items() if name in own.sizes}
    sizes |= {name: "2" for name in TABLE["parallel"] if name in own.sizes and whole(own, name) > 1}
    sizes |= {name: value for name, value in (other or {}).items() if name in own.sizes}
    sizes.setdefault("devices_per_node", str(ranks(own, sizes)))
    own_keys = [bare(name) for name in own.overrides]
    overrides = {name: str(TABLE["amounts"][name]["value"]) for name in own_keys if name in TABLE["amounts"]}
    overrides |= {
        name: str(one["value"]) for name, one in TABLE["run"].items() if one.get("where") in (None, *own_keys)
    }
    if own.engine_nodes:
        overrides |= {name: str(one["value"]) for name, one in TABLE["engines_apart"].items()}
    overrides |= dict(more or {})
    if sizes.get("pp") == "1":
        left_out |= TABLE["one_stage"].keys()
    used = {name: path for name, path in paths.items() if name in own.paths}
    given = {name: value for name, value in overrides.items() if bare(name) not in left_out}
    return Shrunk(own, Given(sizes, given, used), left_out)


def smaller(own: RecipeRun, sizes: Mapping[str, str], asked: Mapping[str, str]) -> dict[str, str]:
    """Of a release's `sizes` those that make a recipe smaller, and those that somebody asks for."""
    return {name: size for name, size in sizes.items() if name in own.sizes and whole(own, name) > int(size)} | dict(
        asked
    )


def ranks(own: RecipeRun, sizes: Mapping[str, str]) -> int:
    """What the parallel sizes make, times two for data parallelism where the recipe has it and the limit leaves room."""
    if whole(own, "devices") == 1:
        return 1
    found = 1
    for name in TRAINED_IN_PARALLEL:
        found *= int(sizes.get(name, 1))
    found = max(found, int(sizes.get("rollout_tp", 1)))
    return min(found * 2, TABLE["most_ranks"])


def whole(run: RecipeRun, name: str) -> int:
    return int(Fraction(run.sizes[name].value))


def replaced(known: Recipes, one: Shrunk) -> dict[str, tuple[str, str]]:
    """{size or override: (the recipe's, the shrunk one's)} of all that differ; expressions of sizes are followed."""
    run = one.run(known)
    found: dict[str, tuple[str, str]] = {}
    for section in ("sizes", "environment", "overrides"):
        own, new = getattr(one.recipe, section), getattr(run, section)
        for key in {**own, **new}:
            pair = tuple(side[key].value if key in side else "" for side in (own, new))
            if pair[0] != pair[1]:
                found[key] = (pair[0], pair[1])
    return found
