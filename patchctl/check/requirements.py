"""Whether the locks of requirements follow from trees, profiles and recipes: from files alone, without a network."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from patchctl.errors import BadManifest
from patchctl.findings.report import Finding, Report, from_error
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.problems import InvalidManifest
from patchctl.manifest.requirement_types import PLATFORMS
from patchctl.requirements.declared import FILE, read_declared, stale
from patchctl.requirements.inputs import inputs_of
from patchctl.requirements.lockfile import lock_path, read_lock
from patchctl.requirements.scripts import dependencies, imported
from patchctl.requirements.sets import NamedSet, all_sets
from patchctl.training.recipes.read import read_recipes
from patchctl.training.recipes.resolve import resolve

REWARDS = "scripts/rewards"
_SCRIPT = re.compile(r"scripts/[A-Za-z0-9_/]+\.py")
_TODO = "`patchctl lock --requirements` makes it anew"


def check_requirements(dist: Distribution, report: Report) -> None:
    """Adds what is wrong with the sets that profiles name, their locks, and what rewards say that they import."""
    from patchctl.check.distribution import below, manifest_findings

    try:
        sets = all_sets(dist)
        report.counts.update({"requirement locks": len(sets) * len(PLATFORMS)} if sets else {})
        report.add(_needs(dist))
        report.add(_rewards(dist))
        for named in sets:
            for finding in _locks(dist, named):
                report.add([Finding(finding.rule, finding.message, below(dist.root, finding.file), finding.line)])
    except InvalidManifest as error:
        seen = {(f.rule, f.message) for f in report.findings}
        new = manifest_findings(dist.root, error).findings
        report.add(f for f in new if (f.rule, f.message) not in seen)
    except BadManifest as error:
        report.add([from_error("requirements-lock", error, "manifests/requirements")])


def _locks(dist: Distribution, named: NamedSet) -> Iterator[Finding]:
    try:
        declared = read_declared(named)
    except BadManifest as error:
        yield from_error("requirements-lock", error, str(named.folder / FILE))
        return
    for reason in stale(dist, named, declared):
        yield Finding("requirements-lock", f"not what the trees declare: {reason}: {_TODO}", str(named.folder / FILE))
    inputs = inputs_of(dist, named, declared)
    for platform in PLATFORMS:
        file = str(lock_path(named, platform))
        try:
            lock = read_lock(named, platform)
        except BadManifest as error:
            yield from_error("requirements-lock", error, file)
            continue
        if lock.input != inputs.digest(platform):
            what = "it no longer follows from what trees, profiles, recipes, scripts and set.yaml ask for"
            yield Finding("requirements-lock", f"{what}: {_TODO}", file)


def _needs(dist: Distribution) -> Iterator[Finding]:
    """A recipe that sends its reader to a script of ours needs what that script declares."""
    recipes = read_recipes(dist)
    for profile, name in recipes.runnable():
        run = resolve(recipes, profile, name)
        have = {canonicalize_name(Requirement(text).name) for text in run.needs_packages}
        scripts = {found for path in run.paths.values() for found in _SCRIPT.findall(path.what)}
        for script in sorted(s for s in scripts if (dist.root / s).is_file()):
            lacking = [n for n in _names(dist.root / script) if n not in have]
            if lacking:
                what = f"{run.title} names {script}, which imports {', '.join(lacking)}: say so with needs_packages"
                yield Finding("recipe-packages", what, f"manifests/recipes/{profile}/{name}.yaml")


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
