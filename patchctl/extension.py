"""What a wing adds to patchctl, so that what it builds on need not know it: verbs, checks, manifests, requirements.

`patchctl.__main__` registers every extension before anything else runs, in the process that `cluster` starts on a node as
well. An extension names its functions as MODULE:NAME, and each is imported when it is first called for: `apply` imports
nothing of training.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Extension:
    """One wing. The room that calls a function says which arguments it gets.

    `verbs` (cli): help and click command by name. `cluster_verbs` (cli.cluster_verb): click commands of the group `cluster`.
    `manifests` (manifest.files): names in manifests/ that it reads itself. `schemas` (manifest.schema): their classes by name.
    `checks` (check.distribution): functions of `verify`. `rules` (check.rules): what these hold. `requirements`
    (requirements.inputs): functions that say who needs which packages. `environments` (cluster.request): what a recipe sets
    on every node. `recipes` (catalog.overview): functions that say which there are, and what they need. `complete_recipe`
    (cli.cluster_verb): its names for a shell. `probe` (cluster.node): looks at a node's machine.
    """

    verbs: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    cluster_verbs: tuple[str, ...] = ()
    manifests: frozenset[str] = frozenset()
    schemas: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    environments: tuple[str, ...] = ()
    recipes: tuple[str, ...] = ()
    complete_recipe: tuple[str, ...] = ()
    probe: tuple[str, ...] = ()


_registered: list[Extension] = []


def register(extension: Extension) -> None:
    """Adds an extension; a second time changes nothing."""
    if extension not in _registered:
        _registered.append(extension)


def registered() -> tuple[Extension, ...]:
    """The extensions in the order of registration."""
    return tuple(_registered)


def load(name: str) -> Any:
    """What MODULE:NAME names."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)
