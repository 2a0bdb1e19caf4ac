"""The rules of recipes by the feature that they are about, for the pages of features."""

from __future__ import annotations

import re
from collections.abc import Mapping

from patchctl.catalog.feature_pages import FeatureRule
from patchctl.catalog.features import Catalog
from patchctl.manifest.distribution import Distribution
from patchctl.training.recipes.conditions import names_in
from patchctl.training.recipes.read import read_recipes
from patchctl.training.recipes.types import Condition, RecipeRule


def rules_of_features(dist: Distribution) -> Mapping[str, list[FeatureRule]]:
    """Return by feature the rules that read its switch or what else it acts on, ask a recipe to need it, or have it as their source."""
    loaded = read_recipes(dist).rules
    if loaded is None:
        return {}
    rules, found = loaded.value, dict[str, list[FeatureRule]]()
    for row in Catalog(dist).patches():
        kind, _, rest = (row.switch or "").partition(" ")
        switch = rest.partition("=")[0].strip().lstrip("+")
        named = {f"env.{switch}" if kind == "env" else switch, *rules.switched_by.get(row.feature, ())} - {""}
        about = [_of_feature(name, rule) for name, rule in rules.rules.items() if _is_about(rule, row.feature, named)]
        found.setdefault(row.feature, []).extend(one for one in about if one not in found[row.feature])
    return found


def _is_about(rule: RecipeRule, feature: str, named: set[str]) -> bool:
    conditions: list[Condition] = [one for one in (rule.when, rule.must) if one]
    read = {name for one in conditions for name in names_in(one)}
    needed = {feature for one in conditions for feature in one.contains.get("recipe.needs", ())}
    # An engine's setting has the keys of verl before it: engine_kwargs.vllm.additional_config.NAME.
    acts = any(name == one or name.endswith(f".{one}") for name in read for one in named)
    return acts or feature in needed or feature in re.findall(r"[a-z0-9_]+", rule.source)


def _of_feature(name: str, rule: RecipeRule) -> FeatureRule:
    of = ", ".join(f"{upstream} {versions}" for upstream, versions in rule.of.items())
    return FeatureRule(name, rule.says, rule.why, rule.hint, of)
