"""Of which versions of upstreams something is true: conditions on the pins of a profile's stacks, never a release's name.

A pin has its source distribution's version, else the one that its tag names. A commit between releases has none, and nothing that
names versions of that upstream is true of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from patchctl.manifest.distribution import Distribution
from patchctl.manifest.types import Profile, Stack

FACT = "stack."  # what begins so is the version of an upstream


def version_of(stack: Stack) -> str | None:
    """The version of a stack's pin."""
    if stack.pin.sdist is not None:
        return stack.pin.sdist.version
    found = re.search(r"[0-9].*", stack.pin.tag or "")
    return found[0] if found else None


def versions_of(dist: Distribution, profile: Profile) -> dict[str, str]:
    """The versions of a profile's stacks, by upstream, where they have one."""
    found = {upstream: version_of(stack) for upstream, stack in dist.stacks_of(profile).items()}
    return {upstream: version for upstream, version in found.items() if version is not None}


def true_of(conditions: Mapping[str, str], versions: Mapping[str, str]) -> bool:
    """Whether all upstreams that conditions name are of such versions."""
    return all(_within(versions.get(upstream), limits) for upstream, limits in conditions.items())


def is_of(stack: Stack, limits: str) -> bool:
    """Whether a stack's pin is of such a version; one without a version is of none."""
    return _within(version_of(stack), limits)


def _within(version: str | None, limits: str) -> bool:
    return version is not None and SpecifierSet(limits).contains(version, prereleases=True)


def table_of(name: str) -> tuple[str, dict[str, str]]:
    """The name of a table and its condition: all@verl>=0.9."""
    table, _, condition = name.partition("@")
    return table, condition_of(condition) if condition else {}


def condition_of(text: str) -> dict[str, str]:
    """The condition that verl>=0.9 is."""
    required = Requirement(text)
    return {required.name: str(required.specifier)}
