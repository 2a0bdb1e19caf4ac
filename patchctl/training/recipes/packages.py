"""The packages that recipes and rewards need: what they say, held against what they import, and as inputs of a lock."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from patchctl.check.series import Series, below
from patchctl.errors import BadManifest
from patchctl.findings.report import Finding, Report, from_error
from patchctl.manifest.diagnostics import InvalidManifest
from patchctl.manifest.distribution import Distribution
from patchctl.requirements.scripts import dependencies, imported
from patchctl.requirements.sets import NamedSet
from patchctl.training.recipes.read import Recipes, read_recipes
from patchctl.training.recipes.resolve import resolve

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
        for name in sorted(used - declared):
            yield Finding(
                "recipe-packages", f"it imports {name}, and its block of dependencies (PEP 723) does not name it", path
            )
        for name in sorted(declared - used):
            yield Finding("recipe-packages", f"its block of dependencies names {name}, and it does not import it", path)


def _names(file: Path) -> list[str]:
    return [canonicalize_name(Requirement(text).name) for text in dependencies(file)]
