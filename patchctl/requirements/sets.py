"""Reads manifests/requirements/NAME/set.yaml and finds the profiles that use it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from patchctl.errors import WrongUse
from patchctl.manifest.diagnostics import InvalidManifest, Problem, did_you_mean, quoted, shown
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.load import Loaded, read
from patchctl.manifest.requirement_types import RequirementSet
from patchctl.manifest.types import Profile

FOLDER = Path("manifests") / "requirements"


@dataclass(frozen=True)
class NamedSet:
    """A set, its folder, and the profiles that install it.

    The profiles must have the same upstreams and runtime, and stacks whose declared files are equal.
    """

    folder: Path
    loaded: Loaded[RequirementSet]
    profiles: tuple[Profile, ...]

    @property
    def value(self) -> RequirementSet:
        return self.loaded.value

    @property
    def name(self) -> str:
        return self.value.name

    @property
    def stacks(self) -> Mapping[str, str]:
        """The stacks whose files are read: those of the oldest release that has the set."""
        return next((p.stacks for p in self.profiles if p.release == self.profiles[-1].release), {})


def set_of(dist: Distribution, profile: Profile) -> NamedSet | None:
    """Return the set that a profile names, or None. Raises InvalidManifest for a set with errors."""
    return None if profile.requirements is None else read_set(dist, profile.requirements)


def required_set(dist: Distribution, profile: Profile) -> NamedSet:
    """Like `set_of`, but raise WrongUse if the profile names none."""
    found = set_of(dist, profile)
    if found is None:
        hint = f"set `requirements: NAME` in its manifest to a folder of {FOLDER}/"
        raise WrongUse(f"{profile.name} names no requirement set", hint=hint)
    return found


def all_sets(dist: Distribution) -> list[NamedSet]:
    """Return every set that a profile names. Raises InvalidManifest with the errors of the first invalid one."""
    return [read_set(dist, name) for name in sorted({p.requirements for p in dist.every_profile() if p.requirements})]


def read_set(dist: Distribution, name: str) -> NamedSet:
    """Read one set. Raises InvalidManifest with every error."""
    folder = dist.root / FOLDER / name
    users = [p for p in dist.every_profile() if p.requirements == name]
    if not (folder / "set.yaml").is_file():
        there = [p.name for p in (dist.root / FOLDER).glob("*") if (p / "set.yaml").is_file()]
        file = shown(dist.profile_file(users[0])) if users else shown(folder)
        what = f"{shown(folder / 'set.yaml')} does not exist{did_you_mean(name, there)}"
        raise InvalidManifest([Problem(file, 1, 1, "requirements", what)])
    found = NamedSet(folder, read(folder / "set.yaml", RequirementSet), tuple(users))
    problems = list(_faults(found))
    if problems:
        raise InvalidManifest(problems)
    return found


def _faults(found: NamedSet) -> Iterator[Problem]:
    value, at = found.value, found.loaded.positions
    if value.name != found.folder.name:
        yield at.problem(("name",), f"expected {quoted(found.folder.name)}, the folder's name")
    seen: set[str] = set()
    for index, override in enumerate(value.overrides):
        try:
            name = canonicalize_name(Requirement(override.requirement).name)
        except InvalidRequirement as error:
            yield at.problem(("overrides", index, "requirement"), str(error).partition("\n")[0])
            continue
        if name in seen:
            yield at.problem(("overrides", index, "requirement"), f"duplicate {quoted(name)}")
        seen.add(name)
    for index, place in enumerate(value.elsewhere):
        if (place.local is None) == (place.version is None):
            yield at.problem(("elsewhere", index), "expected either local or version")
    stacks = found.stacks
    for index, declared in enumerate(value.declared):
        if declared.upstream not in stacks:
            what = f"the profiles have no {quoted(declared.upstream)}{did_you_mean(declared.upstream, stacks)}"
            yield at.problem(("declared", index, "upstream"), what)
    for other in found.profiles[1:]:
        if (other.stacks.keys(), other.runtime) != (stacks.keys(), found.profiles[0].runtime):
            what = f"{found.profiles[0].name} and {other.name} use it with different upstreams or runtimes"
            yield at.problem((), f"{what}: each needs a set of its own")
