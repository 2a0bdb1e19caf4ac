"""Reads manifests/recipes/<folder>/<recipe>.yaml and manifests/rules.yaml.

A folder has a profile's name and holds its recipes; the folder `shared` holds parts that recipes extend and nobody runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from patchctl.errors import WrongUse
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.load import Loaded, read
from patchctl.manifest.problems import InvalidManifest, Problem, did_you_mean, quoted, shown
from patchctl.training.recipes import conditions
from patchctl.training.recipes.types import Recipe, Rules

FOLDER = Path("manifests") / "recipes"
RULES = Path("manifests") / "rules.yaml"
SHARED = "shared"

Key = tuple[str, str]
"""A recipe's folder and name."""


@dataclass(frozen=True)
class Recipes:
    """The recipes of a distribution, and the rules over them; both empty where it keeps none."""

    files: Mapping[Key, Loaded[Recipe]]
    rules: Loaded[Rules] | None
    profiles: tuple[str, ...]

    def of(self, profile: str) -> list[str]:
        """The names of a profile's recipes."""
        return [name for folder, name in self.files if folder == profile]

    def runnable(self) -> list[Key]:
        """Every recipe that can be run, by profile and name."""
        return [key for key in self.files if key[0] != SHARED]

    def recipe(self, profile: str, name: str) -> Loaded[Recipe]:
        """Raises WrongUse, which names the nearest known one."""
        if (profile, name) not in self.files:
            hint = f"`patchctl recipe list --profile {profile}` names them all" if self.of(profile) else None
            raise WrongUse(f"{profile} has no recipe {quoted(name)}{did_you_mean(name, self.of(profile))}", hint=hint)
        return self.files[profile, name]


def read_recipes(dist: Distribution) -> Recipes:
    """All of them. Raises InvalidManifest with every fault of every file."""
    problems: list[Problem] = []
    files: dict[Key, Loaded[Recipe]] = {}
    unread: set[Key] = set()
    for path in _paths(dist, problems):
        try:
            loaded = read(path, Recipe)
        except InvalidManifest as error:
            problems.extend(error.problems)
            unread.add((path.parent.name, path.stem))
            continue
        files[path.parent.name, path.stem] = loaded
        if loaded.value.name != path.stem:
            what = f"expected {quoted(path.stem)}, as the file's name; found {quoted(loaded.value.name)}"
            problems.append(loaded.positions.problem(("name",), what))
    rules = _rules(dist.root, problems)
    problems += conditions.faults(rules) if rules else []
    for key, loaded in files.items():
        problems += _parent(key, loaded, files, unread)
    if problems:
        raise InvalidManifest(problems)
    return Recipes(files, rules, tuple(dist.profiles))


def parent_of(key: Key, recipe: Recipe) -> Key | None:
    """What a recipe extends: a name of its own folder, or FOLDER/NAME."""
    if recipe.extends is None:
        return None
    folder, slash, name = recipe.extends.partition("/")
    return (folder, name) if slash else (key[0], folder)


def _paths(dist: Distribution, problems: list[Problem]) -> Iterator[Path]:
    folder = dist.root / FOLDER
    for sub in sorted(_visible(folder)):
        if not sub.is_dir() or sub.name not in {SHARED, *dist.profiles}:
            known = did_you_mean(sub.name, {SHARED, *dist.profiles})
            what = f"would not be read; expected a folder with a profile's name, or {SHARED!r}, here{known}"
            problems.append(Problem(shown(sub), 1, 1, "", what))
            continue
        for path in sorted(_visible(sub)):
            if path.suffix == ".yaml":
                yield path
            else:
                problems.append(Problem(shown(path), 1, 1, "", "would not be read; expected files NAME.yaml here"))


def _visible(folder: Path) -> list[Path]:
    """What lies in a folder, less hidden files and editors' backups."""
    found = list(folder.iterdir()) if folder.is_dir() else []
    return [p for p in found if not p.name.startswith(".") and not p.name.endswith("~")]


def _rules(root: Path, problems: list[Problem]) -> Loaded[Rules] | None:
    if not (root / RULES).exists():
        return None
    try:
        return read(root / RULES, Rules)
    except InvalidManifest as error:
        problems.extend(error.problems)
        return None


def _parent(
    key: Key, loaded: Loaded[Recipe], files: Mapping[Key, Loaded[Recipe]], unread: set[Key]
) -> Iterator[Problem]:
    """What it extends is there, and not round in a circle. Who extends a file with faults is not blamed as well."""
    seen = [key]
    while (parent := parent_of(seen[-1], files[seen[-1]].value)) is not None:
        if parent not in files:
            if len(seen) == 1 and parent not in unread:  # a fault further up is that file's
                known = [f"{folder}/{name}" for folder, name in files if (folder, name) != key]
                what = f"no recipe {quoted('/'.join(parent))}{did_you_mean('/'.join(parent), known)}"
                yield loaded.positions.problem(("extends",), what)
            return
        if parent in seen:
            circle = " -> ".join("/".join(k) for k in [*seen, parent])
            yield loaded.positions.problem(("extends",), f"a circle: {circle}")
            return
        seen.append(parent)
