"""Extensions: what a package adds to patchctl, which need not know it: verbs, checks, manifests, requirements.

A package registers one as an entry point of the group `patchctl.extensions`, like training in pyproject.toml. Entry
points are looked up once per process, on first use. An extension names its functions as MODULE:NAME, each imported on
first use, so that `apply` imports nothing of training.
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
    """One extension. The package that calls a function documents its arguments.

    `verbs` (cli): help of one line and click command by name, listed below `heading`. `cluster_verbs`
    (cli.cluster_verb): click commands of the group `cluster`. `manifests` (manifest.files): names in manifests/ that
    it reads itself. `schemas` (manifest.schema): their classes by name. `checks` (check.distribution): functions of
    `verify`. `rules` (check.rules): their rules. `requirements` (requirements.lockfile): functions that return
    requirement lines. `environments` (cli.cluster_verb): what a recipe sets on every node. `recipes`
    (catalog.overview): functions that list recipes and their needs. `complete_recipe` (cli.cluster_verb): shell
    completion of recipe names. `probe` (cluster.node): looks at a node's machine. `pages` (cli.generated_pages): functions
    of a distribution that return the text of generated pages by path.
    """

    verbs: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    heading: str = "Extensions"
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
    pages: tuple[str, ...] = ()


GROUP = "patchctl.extensions"
"""The entry point group; each entry names an Extension."""
_own: list[str] = []


def bring(name: str) -> None:
    """Register, as MODULE:NAME, an extension that ships with patchctl.

    A checkout on PYTHONPATH, and the copy on a cluster node, have no metadata to find it by.
    """
    if name not in _own:
        _own.append(name)
        registered.cache_clear()


@cache
def registered() -> tuple[Extension, ...]:
    """Return patchctl's own extensions, then installed ones; none before `bring`. Raises WrongUse."""
    return tuple(map(_extension, {**dict.fromkeys(_own), **installed()})) if _own else ()


@cache
def installed() -> dict[str, str]:
    """Return distributions (NAME-VERSION) by MODULE:NAME of their entry points, in the order of `sys.path`.

    Read directly, since importing importlib.metadata takes a fifth of the time of `patchctl --help`.
    """
    places: dict[str, tuple[str, str]] = {}
    for folder in sys.path:
        try:
            names = sorted(os.listdir(folder or "."))
        except OSError:  # an archive, or missing
            continue
        for name, ending in map(os.path.splitext, names):
            if ending in (".dist-info", ".egg-info"):
                # The first of a name on the path is the installed one.
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
        raise _unusable(name, "not a patchctl.extension.Extension")
    return found


def load(name: str) -> Any:
    """Import MODULE:NAME. Raises WrongUse if that fails outside patchctl."""
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:
        if module.startswith("patchctl."):
            raise
        raise _unusable(name, f"{type(error).__name__}: {error}") from error


def distribution_of(name: str) -> str:
    """Return the distribution whose extension is in the same package as MODULE:NAME."""
    top = re.split("[.:]", name)[0]
    return next((there for value, there in installed().items() if re.split("[.:]", value)[0] == top), top)


def _unusable(name: str, why: str) -> WrongUse:
    there = distribution_of(name)
    hint = f"uninstall it (`{sys.executable} -m pip uninstall {there.partition('-')[0]}`), or try another version"
    return WrongUse(f"cannot use the extension {there}: {name}: {why}", hint=hint)
