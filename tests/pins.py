"""What the distribution pins, from its manifests: no test repeats a version."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from patchctl.__main__ import compose
from patchctl.catalog.chosen_release import on_release
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.types import Profile, Stack
from patchctl.training.recipes import conditions
from patchctl.training.recipes.read import Recipes, read_recipes

REPO = Path(__file__).resolve().parents[1]
PROFILE = "qwen3-235b"


@cache
def distribution() -> Distribution:
    """The manifests that the tests lie beside."""
    compose()  # scripts come here too, which no conftest.py has prepared
    return Distribution.load(REPO)


def newest() -> str:
    """The newest release."""
    return next(iter(distribution().releases))


def oldest() -> str:
    """The oldest release, of which a few programs and tests are alone: what they need went from upstream."""
    return list(distribution().releases)[-1]


@cache
def on(release: str | None) -> Distribution:
    """The distribution with a release chosen; None chooses that which patchctl takes by itself."""
    return on_release(distribution(), release, print)


@cache
def recipes() -> Recipes:
    """The recipes with no release chosen."""
    return read_recipes(distribution())


@cache
def recipes_on(release: str | None) -> Recipes:
    """The recipes of a release; None as `on` has it."""
    return read_recipes(on(release))


def profile_on(release: str | None, profile: str = PROFILE) -> Profile:
    """A profile on a release; without one on that which patchctl takes by itself. Raises WrongUse where it does not stand there."""
    return on(release).profile(profile)


def stack_of(upstream: str, profile: str = PROFILE, release: str | None = None) -> Stack:
    """The stack that a profile has of an upstream."""
    return distribution().stacks_of(profile_on(release, profile))[upstream]


def version_of(upstream: str, profile: str = PROFILE, release: str | None = None) -> str:
    """The version that the package index has the pin of a profile's stack by."""
    return index_version(stack_of(upstream, profile, release))


def index_version(stack: Stack) -> str:
    """The version that the package index has a stack's pin by; its tag's, where a repository alone has it."""
    version = conditions.version_of(stack)
    assert version is not None, f"{stack.upstream} {stack.name} is neither on the package index nor tagged"
    return version


def import_name(upstream: str) -> str:
    """What Python imports an upstream by."""
    (package,) = distribution().upstream(upstream).packages
    return package
