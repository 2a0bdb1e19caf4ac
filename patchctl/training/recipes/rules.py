"""Holds a recipe against the rules, and against the switches of the features that it needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import PurePath

from patchctl.errors import Where
from patchctl.manifest.diagnostics import did_you_mean
from patchctl.manifest.load import Loaded
from patchctl.training.recipes import conditions
from patchctl.training.recipes.grammar import as_written, pairs
from patchctl.training.recipes.resolve import COMMAND_LINE, DEVICES, NODES, PER_NODE, RecipeRun, Resolved, bare
from patchctl.training.recipes.types import RecipeRule, Rules

CONFIG = "ppo_trainer"  # what a sample that names no configuration is checked against
_OFF = ("false", "null", "0")


@dataclass(frozen=True)
class Broken:
    """A rule that a recipe does not keep. `found` is what is so, `where` the value that a person would change."""

    rule: str
    says: str
    found: str
    why: str
    hint: str
    where: Where

    def __str__(self) -> str:
        return f"{self.says}: {self.found} ({self.why}). Try: {self.hint}"


@dataclass(frozen=True)
class Switch:
    """What turns a feature on: KEY=VALUE of the configuration, or a variable. `kind` is the word of its patch."""

    feature: str
    kind: str
    name: str


def facts_of(run: RecipeRun, rules: Rules) -> conditions.Facts:
    """Everything that a rule may ask of a recipe."""
    values = {name: size.value for name, size in run.sizes.items()}
    values |= dict(leaf for key, setting in run.overrides.items() for leaf in _leaves(bare(key), setting.value))
    values |= {f"env.{name}": setting.value for name, setting in run.environment.items()}
    values |= {
        "engine_devices": str(run.engine_devices),
        "engine_devices_per_node": str(run.engine_devices_per_node),
        "recipe.needs": _listed(run.needs),
        "recipe.module": run.entry.module,
        "recipe.config": run.entry.config,
        "recipe.folder": run.entry.folder or ".",
        "recipe.data_sources": _listed([source for data in run.data.values() for source in data.data_source]),
    }
    renamed = conditions.renamed_in(rules, run.versions)
    return _with_derived(conditions.Facts(values, defaults_of(run, rules), run.versions, renamed))


def _with_derived(facts: conditions.Facts) -> conditions.Facts:
    """With what follows from settings: whether a reference model is loaded, and `padded_batch`, the prompts that the passes for
    log-probabilities have: of one update, padded to whole mini-batches (verl's `_balance_batch`)."""
    actor, asynchronous = "actor_rollout_ref.actor", "trainer.v1.separate_async.parameter_sync_step"
    derived = {
        "recipe.reference": str(facts.on(f"{actor}.use_kl_loss") or facts.on("algorithm.use_kl_in_reward")),
    }
    with suppress(conditions.BadExpression, ZeroDivisionError):
        mini = facts.number(f"{actor}.ppo_mini_batch_size")
        apart = facts.text("trainer.v1.trainer_mode") == "separate_async"
        batch = facts.number("data.train_batch_size") // (facts.number(asynchronous) if apart else 1)
        derived["padded_batch"] = str(-(-batch // mini) * mini)
    return replace(facts, values={**derived, **facts.values})


def _leaves(key: str, value: str) -> Iterator[tuple[str, str]]:
    """A key and its value; of a mapping, which Hydra merges into the one that is there, those of its keys too."""
    yield key, value
    for name, inside in pairs(value).items():
        yield from _leaves(f"{key}.{name}", as_written(inside))


def defaults_of(run: RecipeRun, rules: Rules) -> dict[str, str]:
    """What the framework does where the recipe says nothing: under its configuration, or the one that an override makes of it."""
    said = (f"{bare(key)}={setting.value}" for key, setting in run.overrides.items())
    config = next((rules.composed_as[one] for one in said if one in rules.composed_as), run.entry.config)
    return conditions.defaults_for(rules, config, run.versions)


def sample_facts(sample: Mapping[str, str], rules: Rules) -> conditions.Facts:
    """A rule's own sample as facts. The versions are those that it names as stack.UPSTREAM."""
    values = {"recipe.module": "verl.trainer.main_ppo", "recipe.config": CONFIG, "recipe.folder": ".", **sample}
    versions = {
        name.removeprefix(conditions.FACT): value for name, value in sample.items() if name.startswith(conditions.FACT)
    }
    defaults = conditions.defaults_for(rules, values["recipe.config"], versions)
    return _with_derived(conditions.Facts(values, defaults, versions, conditions.renamed_in(rules, versions)))


def verdict(rule: RecipeRule, facts: conditions.Facts) -> str | None:
    """What breaks the rule, or None. Raises BadExpression for a rule that cannot be asked of these facts."""
    if not conditions.true_of(rule.of, facts.versions):
        return None
    if rule.when is not None and conditions.misses(rule.when, facts) is not None:
        return None
    return conditions.misses(rule.must, facts)


def broken_rules(run: RecipeRun, loaded: Loaded[Rules] | None) -> Iterator[Broken]:
    """Every rule that the recipe does not keep."""
    if loaded is None:
        return
    facts = facts_of(run, loaded.value)
    for name, rule in loaded.value.rules.items():
        try:
            found = verdict(rule, facts)
        except conditions.BadExpression as error:
            found = str(error)
        if found is not None:
            yield Broken(name, rule.says, found, rule.why.rstrip("."), rule.hint, _place(run, rule))


def _place(run: RecipeRun, rule: RecipeRule) -> Where:
    """Where the value stands that breaks the rule: on the command line, if it speaks of one that does, else the first of all."""
    settings = {f"env.{name}": value for name, value in run.environment.items()}
    settings |= {bare(key): value for key, value in run.overrides.items()} | {**run.sizes}
    names = conditions.names_of(rule)
    names += [NODES, PER_NODE] if DEVICES in names else []
    found = sorted((settings[name] for name in names if name in settings), key=lambda one: one.recipe != COMMAND_LINE)
    return place_of(run, *found)


def place_of(run: RecipeRun, *settings: Resolved) -> Where:
    """Where the first of these stands that stands somewhere; else the recipe's file."""
    places = (Where(COMMAND_LINE) if one.recipe == COMMAND_LINE else one.where for one in settings)
    return next((place for place in places if place is not None), Where(run.positions.file, 1))


def wrong_needs(
    run: RecipeRun, features: Sequence[str], switches: Sequence[Switch], loaded: Loaded[Rules] | None
) -> Iterator[Broken]:
    """Features that the profile does not have, switches of features that are not needed, and the other way round."""
    for feature in run.needs:
        name = feature.partition("@")[0]
        if name not in features:
            found = f"{feature} is none{did_you_mean(name, set(features))}"
            yield _need(run, "a recipe needs features of its profile", found, "leave it out, or choose another profile")
    needed = {feature.partition("@")[0] for feature in run.needs}
    acts_on = _acts_on(features, switches, loaded.value if loaded else None)
    defaults = defaults_of(run, loaded.value) if loaded else {}
    turned_on = {feature: [k for k in keys if _is_on(run, k, defaults)] for feature, keys in acts_on.items()}
    for feature in sorted(needed & acts_on.keys()):
        if not turned_on[feature]:
            found = f"{feature} is needed, and {' or '.join(acts_on[feature])} is not set"
            own = f"`extends: {run.name}` and `without: [{feature}]`, beside that setting"
            hint = _hint(run, acts_on[feature], "set its switch, or take it out of needs", own)
            yield _need(run, "what a recipe needs is switched on", found, hint)
    for feature, keys in sorted(turned_on.items()):
        owners = {other for other, of in turned_on.items() if set(of) & set(keys)}
        if keys and not needed & owners:
            found = f"{keys[0]} switches {feature} on, which is not needed"
            own = f"`extends: {run.name}`, `needs: [{feature}]` and {keys[0]}"
            hint = _hint(run, keys, f"add {feature} to needs", own)
            yield _need(run, "a recipe needs the features that it switches on", found, hint)


def _acts_on(features: Sequence[str], switches: Sequence[Switch], rules: Rules | None) -> dict[str, list[str]]:
    """The names of facts that turn each feature on: its patch's switch, and what the rules name besides. What the profile does not
    apply is turned on by nothing: on a newer release the same keys are upstream's own."""
    found: dict[str, list[str]] = {}
    for switch in switches:
        found.setdefault(switch.feature, []).append(switch.name if switch.kind == "config" else f"env.{switch.name}")
    for feature, keys in (rules.switched_by if rules else {}).items():
        if feature in features:
            found.setdefault(feature, []).extend(keys)
    return found


def _need(run: RecipeRun, says: str, found: str, hint: str) -> Broken:
    why = "a profile may leave the feature out, and the switch then does nothing or is refused"
    where = Where(run.positions.file, run.positions.place(("needs",), at="key")[0])
    return Broken("recipe-needs", says, found, why, hint, where)


def _hint(run: RecipeRun, names: Sequence[str], of_recipe: str, own: str) -> str:
    """What to do: where one of these keys has its value from the command line, which cannot say what is needed, a recipe with `own`."""
    if not any(found[1].recipe == COMMAND_LINE for name in names if (found := _setting_of(run, name))):
        return of_recipe
    return f"a recipe of your own, {PurePath(run.positions.file).parent.as_posix()}/NAME.yaml, with {own}"


def _is_on(run: RecipeRun, name: str, defaults: Mapping[str, str]) -> bool:
    """Whether a key has another value than off."""
    if name.startswith("env."):
        return name.removeprefix("env.") in run.environment
    found = _setting_of(run, name)
    if found is None:
        return False
    key, setting = found
    return setting.value.lower() not in _OFF and not conditions.same(setting.value, defaults.get(bare(key), "null"))


def _setting_of(run: RecipeRun, name: str) -> tuple[str, Resolved] | None:
    """The override of a switch, by its key. The switch of an engine's own configuration is a part of a longer key."""
    return next((item for item in run.overrides.items() if f".{name}." in f".{bare(item[0])}."), None)


def _listed(values: Sequence[str]) -> str:
    return f"[{','.join(values)}]"
