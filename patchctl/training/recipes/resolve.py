"""A recipe with everything that it inherits, its expressions computed, and where each value comes from. Two of them compared,
value by value.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Annotated, Any

from patchctl.doc import Doc
from patchctl.errors import BadManifest, Where, WrongUse
from patchctl.manifest.diagnostics import InvalidManifest, Problem, did_you_mean, quoted
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.load import Loaded, Positions
from patchctl.training.recipes.conditions import BadExpression, number, same, whole
from patchctl.training.recipes.read import Key, Recipes, parent_of, read_recipes
from patchctl.training.recipes.types import DataSet, EntryModule, PathParameter, Recipe, Setting

COMMAND_LINE = "the command line"
_NO_LITERAL = ("=", "$", "[", "{", "'", '"')  # expressions, interpolations, lists, mappings, quoted words
NODES, PER_NODE, DEVICES = "nodes", "devices_per_node", "devices"
ROWS = ("train_rows", "validation_rows")  # of a user's own data; a recipe need not know them
_ROLLOUT = "actor_rollout_ref.rollout"
_SECTIONS = ("sizes", "environment", "overrides")
_TABLES = ("of_each_node", "data", "paths")
_LISTS = ("needs", "needs_packages")


@dataclass(frozen=True)
class Given:
    """What the user says instead of the recipe: sizes, overrides and paths, by name."""

    sizes: Mapping[str, str] = field(default_factory=dict)
    overrides: Mapping[str, str] = field(default_factory=dict)
    paths: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Resolved:
    """One value: the text that the framework gets, as written in the file, and who says it."""

    value: str
    written: str
    recipe: str
    where: Where | None = None
    source: str | None = None
    why: str | None = None
    ours: str | None = None

    @property
    def path(self) -> str | None:
        """The name of the path that the user gives, where the value is one."""
        return self.written[1:] if self.written.startswith("@") else None


@dataclass(frozen=True)
class RecipeRun:
    """A recipe ready to be looked at, checked and printed. `overrides` are by the key as written, + included; `release` is the
    release that the profile is taken on, `versions` are those of its stacks."""

    profile: str
    name: str
    summary: str
    chain: tuple[str, ...]
    entry: EntryModule
    sizes: Mapping[str, Resolved]
    environment: Mapping[str, Resolved]
    overrides: Mapping[str, Resolved]
    of_each_node: Mapping[str, str]
    needs: tuple[str, ...]
    data: Mapping[str, DataSet]
    paths: Mapping[str, PathParameter]
    given: Given
    limits: tuple[str, ...]
    """All of them, those that stop a run among them."""
    note: str | None
    positions: Positions
    packages: tuple[str, ...] = ()
    release: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    stops: tuple[str, ...] = ()

    @property
    def needs_packages(self) -> tuple[str, ...]:
        """Requirements of its settings, and of the files that its paths name."""
        of_paths = [package for path in self.paths.values() for package in path.needs_packages]
        return tuple(dict.fromkeys([*self.packages, *of_paths]))

    @property
    def title(self) -> str:
        return f"{self.profile}/{self.name}"

    def override(self, key: str) -> Resolved | None:
        """The override of a key, whether it is written with + or without."""
        return next((v for k, v in self.overrides.items() if bare(k) == key), None)

    @property
    def engine_nodes(self) -> int:
        """The nodes that the rollout's engines have of their own, beside those that train; 0 where they share devices."""
        return self._whole(f"{_ROLLOUT}.nnodes") or 0

    @property
    def engine_devices_per_node(self) -> int:
        """The devices of a node that has engines."""
        own = self._whole(f"{_ROLLOUT}.n_gpus_per_node") if self.engine_nodes else None
        return own or int(self.sizes[PER_NODE].value)

    @property
    def engine_devices(self) -> int:
        """The devices of all engines."""
        return self.engine_nodes * self.engine_devices_per_node or int(self.sizes[DEVICES].value)

    @property
    def machines(self) -> int:
        """All nodes."""
        return int(self.sizes[NODES].value) + self.engine_nodes

    @property
    def all_devices(self) -> int:
        """The devices of all nodes."""
        return int(self.sizes[DEVICES].value) + (self.engine_devices if self.engine_nodes else 0)

    def _whole(self, key: str) -> int | None:
        found = self.override(key)
        return int(found.value) if found is not None and found.value.isdecimal() else None

    def path(self, name: str) -> str | None:
        """Where a path lies, as far as it is known here."""
        return self.given.paths.get(name, self.paths[name].default)

    @property
    def title_on_release(self) -> str:
        return f"{self.title}@{self.release}" if self.release else self.title

    def repeated(self, *without: str) -> str:
        """What the user said instead of the recipe, as a command is given it again, each word after a blank; no sizes `without`."""
        words = [
            f"--nodes {v}" if n == NODES else f"--size {n}={v}" for n, v in self.given.sizes.items() if n not in without
        ]
        words += [f"--path {shlex.quote(f'{n}={v}')}" for n, v in self.given.paths.items()]
        words += [shlex.quote(f"{n}={v}") for n, v in self.given.overrides.items()]
        return "".join(f" {word}" for word in words)


Run = RecipeRun  # the name in tests of patches/, whose bytes the records of proofs hold


def bare(key: str) -> str:
    """A key without the + that Hydra wants for one that is new."""
    return key.lstrip("+")


def resolve(recipes: Recipes, profile: str, name: str, given: Given | None = None) -> RecipeRun:
    """The recipe as it would run. Raises InvalidManifest for a wrong recipe, WrongUse for a wrong request."""
    given = given or Given()
    own = recipes.recipe(profile, name)
    chain = [recipes.key(profile, name)]  # the recipe, then what it extends, up to the first
    while (parent := parent_of(chain[-1], recipes.files[chain[-1]].value)) is not None:
        chain.append(parent)
    merged = _merge(recipes, chain)
    _apply(merged, given, own)
    files = [recipes.files[key].value for key in reversed(chain)]
    entry = next((one.entry for one in reversed(files) if one.entry is not None), None)
    if entry is None:
        raise InvalidManifest([own.positions.problem(("entry",), "missing, here and in what it extends")])
    sizes = _sizes(merged["sizes"], own)
    numbers = {key: Fraction(v.value) for key, v in sizes.items()}
    return RecipeRun(
        profile,
        name,
        own.value.summary,
        tuple("/".join(key) for key in chain[1:]),
        entry,
        sizes,
        _computed(merged["environment"], numbers, merged["paths"]),
        _computed(merged["overrides"], numbers, merged["paths"]),
        merged["of_each_node"],
        tuple(merged["needs"]),
        merged["data"],
        merged["paths"],
        given,
        tuple(text for one in files for text in (*one.stops, *one.limits)),
        own.value.note,
        own.positions,
        tuple(merged["needs_packages"]),
        recipes.release_of(profile),
        recipes.versions_of(profile),
        tuple(text for one in files for text in one.stops),
    )


def every_run(dist: Distribution, profile: str | None = None) -> list[RecipeRun]:
    """Every recipe that can be run, or each of a profile, on every release. Raises InvalidManifest."""
    found = [read_recipes(one) for one in dist.each_release()]
    return [resolve(one, *key) for one in found for key in one.runnable() if profile in (None, key[0])]


def _merge(recipes: Recipes, chain: Sequence[Key]) -> dict[str, dict[str, Any]]:
    """What a chain of recipes gives, by the names that it has in their files, before anything is computed."""
    merged: dict[str, dict[str, Any]] = {name: {} for name in (*_SECTIONS, *_TABLES, *_LISTS)}
    for key in reversed(chain):
        loaded = recipes.files[key]
        for index, name in enumerate(loaded.value.without):
            inherited = [(table, one) for table in merged.values() for one in table if bare(one) == bare(name)]
            if not inherited:
                what = f"{quoted(name)} is nothing that it inherits"
                raise InvalidManifest([loaded.positions.problem(("without", index), what)])
            for table, one in inherited:
                del table[one]
        for section in _SECTIONS:
            _take_in(merged[section], section, "/".join(key), loaded)
        for name in _TABLES:
            merged[name].update(getattr(loaded.value, name))
        for name in _LISTS:
            merged[name].update(dict.fromkeys(getattr(loaded.value, name)))
    return merged


def _take_in(into: dict[str, Resolved], section: str, title: str, loaded: Loaded[Recipe]) -> None:
    """A key that is there already keeps its place, whether it is written with + or without."""
    settings: Mapping[str, Setting] = getattr(loaded.value, section)
    known = {bare(k): k for k in into}
    for key, setting in settings.items():
        old = known.get(bare(key), key)
        if old != key:
            del into[old]
        line = loaded.positions.place((section, key), at="key")[0]
        source = setting.source or (None if setting.ours else loaded.value.source)
        where = Where(loaded.positions.file, line)
        into[key] = Resolved(setting.value, setting.value, title, where, source, setting.why, setting.ours)


def _apply(merged: dict[str, dict[str, Any]], given: Given, own: Loaded[Recipe]) -> None:
    """What the user says comes last."""
    for name, value in given.sizes.items():
        known_sizes = {*merged["sizes"], *ROWS}
        if name not in known_sizes:
            raise WrongUse(f"{own.value.name} has no size {quoted(name)}{did_you_mean(name, known_sizes)}")
        if not re.fullmatch(r"[1-9][0-9]{0,11}", value):
            raise WrongUse(f"the size {name} is {quoted(value)}; expected a whole number, 1 or more")
        merged["sizes"][name] = Resolved(value, value, COMMAND_LINE)
    overrides, paths = merged["overrides"], merged["paths"]
    for name in given.paths:
        if name not in paths:
            raise WrongUse(f"{own.value.name} has no path {quoted(name)}{did_you_mean(name, paths)}")
    for key, value in given.overrides.items():
        if key.startswith("~"):
            hint = f"a recipe of your own, with `extends: {own.value.name}` and `without: [{key[1:]}]`"
            raise WrongUse(f"{key} takes a key away, which the command line cannot do", hint=hint)
        known = {bare(k): k for k in overrides}
        _check_kind(key, value, {k: overrides[own_key].value for k, own_key in known.items()})
        overrides[known.get(bare(key), key)] = Resolved(value, value, COMMAND_LINE)


def _check_kind(key: str, value: str, known: Mapping[str, str]) -> None:
    """Raise WrongUse for a value that Hydra would take, and the framework otherwise than the recipe's own."""
    name, said = bare(key), f"{key}={value}"
    below = next((other for other in known if other.startswith(f"{name}.")), None)
    if below is not None and value.startswith("{"):
        raise WrongUse(f"{said} is a mapping, and the recipe sets {below}", hint=f"one by one: {name}.KEY=VALUE")
    own = known.get(name, "")
    if own.lower() in ("true", "false") and value.lower() in ("yes", "no", "on", "off"):
        raise WrongUse(f"{said}: Hydra reads a word there, which counts as true", hint=f"{key}=True or {key}=False")
    is_number = own.startswith("=") or number(own) is not None
    if is_number and number(value) is None and not value.startswith(_NO_LITERAL) and value.lower() not in ("", "null"):
        raise WrongUse(f"{said}: the recipe has a number there, {quoted(own)}")
    if own.startswith("=") and number(value) is not None and re.fullmatch(r"[+-]?[0-9_]+", value) is None:
        raise WrongUse(f"{said}: Hydra reads a float there, and the recipe has a whole number, {quoted(own)}")


def _sizes(written: Mapping[str, Resolved], own: Loaded[Recipe]) -> dict[str, Resolved]:
    """Every size computed, and `devices`. A size may be an expression of others."""
    for name in (NODES, PER_NODE):
        if name not in written:
            what = f"the size {name} is missing, here and in what it extends"
            raise InvalidManifest([own.positions.problem(("sizes",), what, at="key")])
    devices = Resolved(f"= {NODES} * {PER_NODE}", f"= {NODES} * {PER_NODE}", "computed")
    all_sizes = {**written, DEVICES: devices}
    done: dict[str, Fraction] = {}

    def value_of(name: str, asked: tuple[str, ...]) -> Fraction:
        if name in done:
            return done[name]
        if name in asked:
            raise BadExpression(f"a circle: {' -> '.join([*asked, name])}")
        if name not in all_sizes:
            raise BadExpression(f"no size {quoted(name)}{did_you_mean(name, all_sizes)}")
        text = all_sizes[name].value.removeprefix("=")
        done[name] = Fraction(whole(text, lambda other: value_of(other, (*asked, name))))
        return done[name]

    found = {}
    for name, size in all_sizes.items():
        try:
            found[name] = replace(size, value=str(value_of(name, ())))
            if done[name] < 1:
                raise BadExpression(f"is {done[name]}; expected 1 or more")
        except BadExpression as error:
            raise _refused(name, size, error) from None
    return found


def _computed(
    settings: Mapping[str, Resolved], numbers: Mapping[str, Fraction], paths: Mapping[str, PathParameter]
) -> dict[str, Resolved]:
    def lookup(name: str) -> Fraction:
        if name not in numbers:
            raise BadExpression(f"no size {quoted(name)}{did_you_mean(name, numbers)}")
        return numbers[name]

    found = {}
    for key, setting in settings.items():
        text = setting.written
        try:
            if setting.path is not None and setting.path not in paths:
                raise BadExpression(f"no path {quoted(setting.path)}{did_you_mean(setting.path, paths)}")
            value = str(whole(text[1:], lookup)) if text.startswith("=") else text
        except BadExpression as error:
            raise _refused(key, setting, error) from None
        found[key] = replace(setting, value=value)
    return found


def _refused(name: str, setting: Resolved, error: BadExpression) -> BadManifest | WrongUse:
    if (place := setting.where) is None:
        return WrongUse(f"{name}: {error}")
    return InvalidManifest([Problem(place.file, place.line or 1, 1, name, str(error))])


@dataclass(frozen=True)
class RecipeDifference:
    """A name and its value in each recipe; None if absent."""

    section: Annotated[str, Doc("`entry`, `needs`, `data`, `sizes`, `environment` or `overrides`")]
    name: Annotated[str, Doc("key, without `+`")]
    one: Annotated[str | None, Doc("value in the first recipe; null if absent")]
    other: Annotated[str | None, Doc("value in the second recipe; null if absent")]


def differences(one: RecipeRun, other: RecipeRun) -> list[RecipeDifference]:
    """Compare entry, needs, data, sizes, environment and overrides, each in the order of the first recipe."""
    left, right = _compared(one), _compared(other)
    names = dict.fromkeys((section, name) for section in left for name in (*left[section], *right[section]))
    rows = [RecipeDifference(section, n, left[section].get(n), right[section].get(n)) for section, n in names]
    return [row for row in rows if row.one is None or row.other is None or not same(row.one, row.other)]


def _compared(run: RecipeRun) -> dict[str, dict[str, str]]:
    """What is compared of a recipe, by section and name."""
    settings = {"sizes": run.sizes, "environment": run.environment, "overrides": run.overrides}
    return {
        "entry": {"module": run.entry.module, "config": run.entry.config, "folder": run.entry.folder or "."},
        "needs": dict.fromkeys(run.needs, "needed"),
        "data": {part: data.name for part, data in run.data.items()},
        **{section: {bare(name): one.value for name, one in found.items()} for section, found in settings.items()},
    }
