"""What an extension adds to patchctl, which need not know it: verbs, checks, manifests, requirements.

A package adds one by an entry point of the group `patchctl.extensions`, as training does in pyproject.toml. They are looked for once
a process, when they are first asked for. An extension names its functions as MODULE:NAME, and each is imported when it is first
called for: `apply` imports nothing of training.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from patchctl.errors import WrongUse


@dataclass(frozen=True)
class Extension:
    """One extension. The package that calls a function defines its arguments.

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


GROUP = "patchctl.extensions"
"""The group of entry points; each names an Extension."""
_own: list[str] = []


def bring(name: str) -> None:
    """Name, as MODULE:NAME, an extension that patchctl has with it. A checkout on PYTHONPATH, and the copy that runs on a node, have
    no metadata that would."""
    if name not in _own:
        _own.append(name)
        registered.cache_clear()


@cache
def registered() -> tuple[Extension, ...]:
    """Those that patchctl brings, then installed ones; none before `bring`. Raises WrongUse for one that cannot be used."""
    return tuple(map(_extension, {**dict.fromkeys(_own), **installed()})) if _own else ()


@cache
def installed() -> dict[str, str]:
    """Distributions (NAME-VERSION) by the MODULE:NAME of their entry points, in the order of `sys.path`.

    Read here, since the imports of importlib.metadata take as long as a fifth of `patchctl --help`.
    """
    places: dict[str, tuple[str, str]] = {}
    for folder in sys.path:
        try:
            names = sorted(os.listdir(folder or "."))
        except OSError:  # an archive, or not there
            continue
        for name, ending in map(os.path.splitext, names):
            if ending in (".dist-info", ".egg-info"):
                # The first of a name on the path is the one that is installed.
                places.setdefault(name.partition("-")[0].lower(), (name, os.path.join(folder, name + ending)))
    return {value: name for name, place in places.values() for value in _entry_points(place)}


def _entry_points(place: str) -> Iterator[str]:
    try:
        with open(os.path.join(place, "entry_points.txt"), encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return
    inside = False
    for line in lines:
        if line.startswith("["):
            inside = line.strip() == f"[{GROUP}]"
        elif inside and "=" in line:
            yield line.partition("=")[2].partition("[")[0].strip()


def _extension(name: str) -> Extension:
    found = load(name)
    if not isinstance(found, Extension):
        raise _unusable(name, "it is no patchctl.extension.Extension")
    return found


def load(name: str) -> Any:
    """What MODULE:NAME names. Raises WrongUse where it is not ours and cannot be had."""
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:
        if module.startswith("patchctl."):
            raise
        raise _unusable(name, f"{type(error).__name__}: {error}") from error


def distribution_of(name: str) -> str:
    """The distribution whose extension lies in the same package as MODULE:NAME."""
    top = re.split("[.:]", name)[0]
    return next((there for value, there in installed().items() if re.split("[.:]", value)[0] == top), top)


def _unusable(name: str, why: str) -> WrongUse:
    there = distribution_of(name)
    hint = f"`{sys.executable} -m pip uninstall {there.partition('-')[0]}` takes it away, another version may do"
    return WrongUse(f"the extension {there} cannot be used: {name}: {why}", hint=hint)
