"""Whether the recipes can be run: they can be read and computed, keep every rule, and need what they switch on.

The packages that recipes and rewards need: what they say, compared with what they import, and as inputs of a lock.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from patchctl.check.patch_rules import LintRule
from patchctl.check.series import Series, below, manifest_findings
from patchctl.errors import BadManifest
from patchctl.findings import Finding, Report, from_error
from patchctl.manifest.diagnostics import InvalidManifest
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.load import Loaded
from patchctl.requirements.lockfile import dependencies, imported
from patchctl.requirements.sets import NamedSet
from patchctl.stack.patches import StackPatch
from patchctl.stack.plan import load_patches
from patchctl.training.recipes.conditions import BadExpression
from patchctl.training.recipes.keys import FOLDER, read_keys, unknown_keys
from patchctl.training.recipes.read import Recipes, read_recipes
from patchctl.training.recipes.resolve import RecipeRun, resolve
from patchctl.training.recipes.rules import Broken, Switch, broken_rules, sample_facts, verdict, wrong_needs
from patchctl.training.recipes.types import Rules

REWARDS = "scripts/rewards"
RECIPES = "recipes"
_SCRIPT = re.compile(r"scripts/[A-Za-z0-9_/]+\.py")


def packages_of_recipes(dist: Distribution, named: NamedSet) -> dict[str, tuple[str, ...]]:
    """What the recipes of the release's profiles need, each once and all together: a recipe more that needs the same changes no
    lock. Raises InvalidManifest."""
    recipes = replace(read_recipes(dist), profiles={p.name: p for p in named.profiles})
    runs = (resolve(recipes, *key) for key in recipes.runnable())
    return {RECIPES: tuple(sorted({str(Requirement(text)) for run in runs for text in run.needs_packages}))}


def check_packages(dist: Distribution, series: Series, report: Report) -> None:
    """Adds where recipes and rewards do not say what the scripts import that they name."""
    try:
        for on_release in dist.each_release():
            report.add(_needs(on_release, read_recipes(on_release)))
        report.add(_rewards(dist))
    except InvalidManifest:
        return  # faults of recipes are told by the check of the recipes
    except BadManifest as error:
        report.add([from_error("requirements-lock", error, REWARDS)])


def _needs(dist: Distribution, recipes: Recipes) -> Iterator[Finding]:
    """A recipe that sends its reader to a script of ours needs what that script declares."""
    for key in recipes.runnable():
        run = resolve(recipes, *key)
        have = {canonicalize_name(Requirement(text).name) for text in run.needs_packages}
        scripts = {found for path in run.paths.values() for found in _SCRIPT.findall(path.what)}
        for script in sorted(s for s in scripts if (dist.root / s).is_file()):
            lacking = [n for n in _names(dist.root / script) if n not in have]
            if lacking:
                what = f"{run.title} names {script}, which imports {', '.join(lacking)}: say so with needs_packages"
                yield Finding("recipe-packages", what, below(dist.root, run.positions.file))


def _rewards(dist: Distribution) -> Iterator[Finding]:
    """A reward's block (PEP 723) names just what it imports. The names of packages and modules are taken for the same."""
    for file in sorted((dist.root / REWARDS).glob("*.py")):
        path = file.relative_to(dist.root).as_posix()
        declared: set[str] = set(_names(file))
        used: set[str] = {canonicalize_name(name) for name in imported(file)}
        for name in sorted(used ^ declared):
            what = f"its block of dependencies names {name}, and it does not import it"
            if name in used:
                what = f"it imports {name}, and its block of dependencies (PEP 723) does not name it"
            yield Finding("recipe-packages", what, path)


def _names(file: Path) -> list[str]:
    return [canonicalize_name(Requirement(text).name) for text in dependencies(file)]


def check_recipes(dist: Distribution, series: Series, report: Report) -> None:
    """Adds what is wrong with the recipes and the rules, and how many there are of both."""
    recipes = read_recipes(dist)
    if recipes.rules:
        report.counts["recipe rules"] = len(recipes.rules.value.rules)
        report.add(_samples(dist, recipes.rules))
    for on_release in dist.each_release():
        _check_release(on_release, series, replace(recipes, profiles=on_release.profiles), report)


def _check_release(dist: Distribution, series: Series, recipes: Recipes, report: Report) -> None:
    """The recipes of the profiles as they are on one release."""
    if recipes.files or recipes.rules:
        report.counts.update(recipes=len(recipes.runnable()))
    unlisted: dict[str, str] = {}  # a list of keys that is not there, and the stack that it would be of
    for profile, name in recipes.runnable():
        try:
            run = resolve(recipes, profile, name)
        except InvalidManifest as error:
            report.add(manifest_findings(dist.root, error))
            continue
        upstream = run.entry.upstream
        stack = dist.profile(run.profile).stacks.get(upstream)
        keys = FOLDER / upstream / f"{stack}.tsv"
        if stack is not None and not (dist.root / keys).is_file():
            unlisted[keys.as_posix()] = f"{upstream}/{stack}"
        if series.broken:  # a patch that cannot be read has a switch that no one knows
            found = broken_rules(run, recipes.rules)
        else:
            found = all_broken(dist, recipes, run, *_of_profile(dist, series.stacks, run.profile))
        for broken in found:
            rule = "recipe-needs" if broken.rule == "recipe-needs" else "recipe-rule"
            message = f"{run.title} breaks {broken.rule}: {broken}"
            report.add([Finding(rule, message, below(dist.root, broken.where.file), broken.where.line)])
    for path, started in unlisted.items():
        what = f"recipes start {started}, which has no list of keys; `make config-keys` (scripts/config_keys.py) writes verl's"
        report.add([Finding("recipe-keys", what, path)])


def all_broken(
    dist: Distribution, recipes: Recipes, run: RecipeRun, features: Sequence[str], switches: Sequence[Switch]
) -> Iterator[Broken]:
    """Every key that the recipe's configuration does not have, and every rule that the recipe does not keep."""
    yield from unknown_keys(run, read_keys(dist, run), dist.practice, switches)
    yield from broken_rules(run, recipes.rules)
    yield from wrong_needs(run, features, switches, recipes.rules)


def features_and_switches(dist: Distribution, profile: str) -> tuple[list[str], list[Switch]]:
    """The features that a profile applies, and what turns each on. Raises BadPatch for a patch that cannot be read."""
    stacks = {key: load_patches(dist, dist.stacks[key]) for key in dist.profile(profile).stacks.items()}
    return _of_profile(dist, stacks, profile)


def _of_profile(
    dist: Distribution, stacks: Mapping[tuple[str, str], Sequence[StackPatch]], name: str
) -> tuple[list[str], list[Switch]]:
    profile = dist.profile(name)
    patches: list[StackPatch] = []
    for upstream, stack in profile.stacks.items():
        left_out = {f.partition("@")[0] for f in profile.without if f.partition("@")[2] in ("", upstream)}
        patches += [p for p in stacks.get((upstream, stack), ()) if p.feature not in left_out]
    switches: list[Switch] = []
    for patch in patches:
        kind, _, rest = (patch.header.trailer("Switch") or "").partition(" ")
        if kind in ("config", "env"):
            switches.append(Switch(patch.feature, kind, rest.partition("=")[0].strip().lstrip("+")))
    return [p.feature for p in patches], switches


def _samples(dist: Distribution, loaded: Loaded[Rules]) -> Iterator[Finding]:
    """A rule says what its own samples say."""
    for name, rule in loaded.value.rules.items():
        for part, samples, breaks in (("good", rule.good, False), ("bad", rule.bad, True)):
            for index, sample in enumerate(samples):
                try:
                    found = verdict(rule, sample_facts(sample, loaded.value))
                except BadExpression as error:
                    found = str(error)
                    breaks = False
                if (found is not None) != breaks:
                    what = f"is broken by its good sample: {found}" if found else "is kept by its bad sample"
                    line = loaded.positions.place(("rules", name, part, index))[0]
                    yield Finding("rule-sample", f"{name} {what}", below(dist.root, loaded.positions.file), line)


RULES = (
    LintRule("recipe-rule", "distribution", "every recipe keeps the rules of manifests/rules.yaml",
         "each rule says what goes wrong otherwise, mostly after hours of training"),
    LintRule("recipe-keys", "distribution", "each stack that recipes start has a list of its configuration's keys, manifests/keys/UPSTREAM/STACK.tsv",
         "without one any key passes, and a misspelt one stops the run when the cluster is up"),
    LintRule("recipe-needs", "distribution", "recipes need features that their profile has, and switch on just what they need",
         "a switch of a feature that is left out does nothing, or stops the run"),
    LintRule("recipe-packages", "distribution", "recipes and rewards name the packages that the rewards import",
         "a run would stop at its first reward, on every node that lacks them"),
    LintRule("rule-sample", "distribution", "every rule keeps its good samples and refuses its bad ones",
         "a rule that refuses nothing looks like one that is kept"),
)  # fmt: skip
