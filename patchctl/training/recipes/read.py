"""Reads manifests/recipes/[<release>/]<folder>/<recipe>.yaml and manifests/rules.yaml.

A folder has a profile's name and holds its recipes; the folder `shared` holds parts that recipes extend and nobody runs. A
release with a folder of its own, or that extends one which has it, has its profiles' recipes there, and no other; the
rest belongs to the other releases, but for recipes that say which versions of upstreams they are `of`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path

from patchctl.errors import WrongUse
from patchctl.language import message
from patchctl.manifest.diagnostics import InvalidManifest, Problem, did_you_mean, quoted, shown
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.load import Loaded, read
from patchctl.manifest.types import Profile
from patchctl.training.recipes import conditions
from patchctl.training.recipes.conditions import true_of, versions_of
from patchctl.training.recipes.types import Recipe, Rules

FOLDER = Path("manifests") / "recipes"
RULES = Path("manifests") / "rules.yaml"
SHARED = "shared"

Key = tuple[str, str]
"""A recipe's folder, below its release's where that has one, and its name; the same of a profile and its recipe."""


@dataclass(frozen=True)
class Recipes:
    """The recipes of a distribution, and the rules over them; both empty where it keeps none. `profiles` have each profile on
    the release whose recipes are meant, `variants` on each of its releases; `versions` are those of its stacks' pins, by profile and release."""

    files: Mapping[Key, Loaded[Recipe]]
    rules: Loaded[Rules] | None
    profiles: Mapping[str, Profile]
    variants: Mapping[str, tuple[Profile, ...]]
    versions: Mapping[tuple[str, str | None], Mapping[str, str]] = field(default_factory=dict)
    folders: Mapping[str, str] = field(default_factory=dict)
    """Of releases whose recipes are elsewhere, the folder where they are."""

    def versions_of(self, profile: str) -> Mapping[str, str]:
        """The versions of the stacks of a profile, by upstream."""
        return self.versions.get((profile, self.release_of(profile)), {})

    def key(self, profile: str, name: str) -> Key:
        """Where the recipe of a profile lies, whether it is there or not."""
        return self._key_on(self.release_of(profile), profile, name)

    def _key_on(self, chosen: str | None, profile: str, name: str) -> Key:
        folder = self.folders.get(chosen or "")
        return (f"{folder}/{profile}" if folder else profile), name

    def release_of(self, profile: str) -> str | None:
        """The release whose recipes of a profile are meant; None where it stands on none."""
        return self.profiles[profile].release if profile in self.profiles else None

    def of(self, profile: str) -> list[str]:
        """The names of a profile's recipes."""
        release = self.release_of(profile)
        own, _ = self._key_on(release, profile, "")
        return [name for folder, name in self.files if folder == own and self._has(release, profile, name)]

    def _has(self, release: str | None, profile: str, name: str) -> bool:
        """Whether a profile has the recipe on a release: its file is there, and it is for the versions of the stacks."""
        key: Key | None = self._key_on(release, profile, name)
        if key not in self.files:
            return False
        versions = self.versions.get((profile, release), {})
        while key is not None:
            if not true_of(self.files[key].value.of, versions):
                return False
            key = parent_of(key, self.files[key].value)
        return True

    def runnable(self) -> list[Key]:
        """Every recipe that can be run, by profile and name."""
        return [(profile, name) for profile in sorted(self.profiles) for name in self.of(profile)]

    def recipe(self, profile: str, name: str) -> Loaded[Recipe]:
        """Raises WrongUse, which names another release that has it, else the nearest known one."""
        if not self._has(self.release_of(profile), profile, name):
            for one in self.variants.get(profile, ()):
                if (other := one.release) is not None and self._has(other, profile, name):
                    what = message(
                        "{profile} has no recipe {name} on {release}: it is one of {other}",
                        profile=profile,
                        name=quoted(name),
                        release=self.release_of(profile),
                        other=other,
                    )
                    way = message(
                        "name it {recipe}@{other}, or `export PATCHCTL_RELEASE={other}` for all verbs of this shell",
                        recipe=f"{profile}/{name}",
                        other=other,
                    )
                    raise WrongUse(what, hint=way)
            release, near = self.release_of(profile), did_you_mean(name, self.of(profile))
            said = {"profile": profile, "name": quoted(name), "near": near}
            what = message("{profile} has no recipe {name}{near}", **said)
            if release:
                what = message("{profile} has no recipe {name} on {release}{near}", release=release, **said)
            hint = message("`patchctl recipe list --profile {profile}` names them all", profile=profile)
            raise WrongUse(what, hint=hint if self.of(profile) else None)
        return self.files[self.key(profile, name)]


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
            unread.add(_key(dist, path))
            continue
        files[_key(dist, path)] = loaded
        if loaded.value.name != path.stem:
            what = f"expected {quoted(path.stem)}, the file's name; found {quoted(loaded.value.name)}"
            problems.append(loaded.positions.problem(("name",), what))
    try:
        rules = read(dist.root / RULES, Rules) if (dist.root / RULES).exists() else None
    except InvalidManifest as error:
        problems.extend(error.problems)
        rules = None
    problems += conditions.faults(rules, dist.upstreams) if rules else []
    for key, loaded in files.items():
        problems += _parent(key, loaded, files, unread)
        for name in loaded.value.of:
            if name not in dist.upstreams:  # a recipe of it would be nobody's
                what = f"no upstream {quoted(name)}{did_you_mean(name, dist.upstreams)}"
                problems.append(loaded.positions.problem(("of", name), what, at="key"))
    if problems:
        raise InvalidManifest(problems)
    versions = {(one.name, one.release): versions_of(dist, one) for one in dist.every_profile()}
    return Recipes(files, rules, dist.profiles, dist.variants, versions, _folders(dist))


def _folders(dist: Distribution) -> dict[str, str]:
    own = {name for name in dist.releases if (dist.root / FOLDER / name).is_dir()}
    nearest = {name: next((one for one in dist.lineage(name) if one in own), None) for name in dist.releases}
    return {name: one for name, one in nearest.items() if one is not None}


def parent_of(key: Key, recipe: Recipe) -> Key | None:
    """What a recipe extends: a name of its own folder, or FOLDER/NAME of the same release."""
    if recipe.extends is None:
        return None
    folder, slash, name = recipe.extends.partition("/")
    of_release = key[0].rpartition("/")[0]
    return (f"{of_release}/{folder}" if of_release else folder, name) if slash else (key[0], folder)


def _key(dist: Distribution, path: Path) -> Key:
    return path.parent.relative_to(dist.root / FOLDER).as_posix(), path.stem


def _paths(dist: Distribution, problems: list[Problem]) -> Iterator[Path]:
    folder = dist.root / FOLDER
    of_releases = {
        name: [p for p, on in dist.variants.items() if any(one.release == name for one in on)] for name in dist.releases
    }
    yield from _below(folder, {SHARED, *dist.variants}, of_releases, problems)
    for name, profiles in of_releases.items():
        yield from _below(folder / name, {SHARED, *profiles}, (), problems)


def _below(folder: Path, known: Set[str], releases: Collection[str], problems: list[Problem]) -> Iterator[Path]:
    for sub in sorted(_visible(folder)):
        if sub.is_dir() and sub.name in releases:
            continue
        if not sub.is_dir() or sub.name not in known:
            what = f"would not be read; expected a folder with a profile's name, or {SHARED!r}, here"
            problems.append(Problem(shown(sub), 1, 1, "", what + did_you_mean(sub.name, {*known, *releases})))
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
