"""Compares an environment with a lock: packages that are missing, excluded by the trees, or merely of another version."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from patchctl.doc import Doc
from patchctl.manifest.requirement_types import LeftOutPackages, Platform
from patchctl.requirements.declared import Declared, read_declared
from patchctl.requirements.lockfile import RequirementsLock, read_lock
from patchctl.requirements.sets import NamedSet

Kind = Literal["missing", "excluded", "left out", "other"]


@dataclass(frozen=True)
class PackageDifference:
    """A package that differs from the lock."""

    name: Annotated[str, Doc("package name")]
    kind: Annotated[
        Kind,
        Doc(
            "`missing`, `excluded` (outside declared limits), `left out` (not in the lock but installed) or `other`"
            " (another version)"
        ),
    ]
    locked: Annotated[str | None, Doc("locked version; null for `left out`")]
    found: Annotated[str | None, Doc("installed version; null for `missing`")]
    who: Annotated[tuple[str, ...], Doc("what requires or excludes the package")]
    matters: Annotated[bool, Doc("true if the difference can affect training")]

    def __str__(self) -> str:
        who = ", ".join(self.who)
        if self.kind == "missing":
            return f"{self.name} is missing; the lock has {self.locked}, for {who}"
        if self.kind == "excluded":
            return f"{self.name} is {self.found}, the lock has {self.locked}; {who}"
        if self.kind == "left out":
            return f"{self.name} {self.found} is installed, but left out of the lock: {who}"
        return f"{self.name} {self.found} (lock {self.locked})"


@dataclass(frozen=True)
class RequiredPackages:
    """What an environment is compared with: its platform's lock, the trees' declarations, and the set."""

    named: NamedSet
    lock: RequirementsLock
    declared: tuple[Declared, ...]

    @classmethod
    def read(cls, named: NamedSet, platform: Platform) -> RequiredPackages:
        """Read lock and declared.txt. Raises BadManifest if one is not as generated."""
        return cls(named, read_lock(named, platform), tuple(read_declared(named)))


def compare(
    installed: Mapping[str, str], wanted: RequiredPackages, *, needs: Collection[str] = (), less: Collection[str] = ()
) -> list[PackageDifference]:
    """Return how an environment's versions (by name) differ from the lock; what matters comes first.

    `needs` are requirements of the recipe to run; `less` are names that the caller compares itself.
    """
    have: dict[str, str] = {canonicalize_name(name): version for name, version in installed.items()}
    limits = _limits(wanted, needs)
    out = {canonicalize_name(name) for name in less}
    found = list(_left_out(have, wanted))
    for name, one in wanted.lock.packages.items():
        if name in out:
            continue
        asked = limits.get(name, [])
        version = have.get(name)
        if version is None:
            who = tuple(dict.fromkeys(title for title, _, _ in asked)) or one.via
            found.append(
                PackageDifference(name, "missing", one.version, None, who, any(strict for _, _, strict in asked))
            )
            continue
        against = [(t, r, strict) for t, r, strict in asked if not _fits(version, r)]
        if against:
            who = tuple(f"{title} wants {requirement}" for title, requirement, _ in against)
            found.append(PackageDifference(name, "excluded", one.version, version, who, any(s for _, _, s in against)))
        elif _public(version) != _public(one.version):
            found.append(PackageDifference(name, "other", one.version, version, (), False))
    return sorted(found, key=lambda d: (not d.matters, d.kind == "other", d.name))


def _limits(wanted: RequiredPackages, needs: Collection[str]) -> dict[str, list[tuple[str, Requirement, bool]]]:
    """Return by name who requires a package, the limits, and whether training fails without it.

    Limits that the lock itself violates were overridden and exclude nothing.
    """
    value = wanted.named.value
    optional = {(d.upstream, d.file) for d in value.declared if d.optional is not None}
    asked = [
        (one.title, requirement, (one.upstream, one.file) not in optional)
        for one in wanted.declared
        for requirement in map(Requirement, one.requirements)
        if requirement.marker is None or requirement.marker.evaluate(_markers(wanted))
    ]
    asked += [("the recipe", Requirement(text), True) for text in needs]
    found: dict[str, list[tuple[str, Requirement, bool]]] = {}
    for title, requirement, strict in asked:
        name = canonicalize_name(requirement.name)
        locked = wanted.lock.packages.get(name)
        if locked is not None:
            holds = requirement if _fits(locked.version, requirement) else Requirement(name)
            found.setdefault(name, []).append((title, holds, strict))
    return found


def _markers(wanted: RequiredPackages) -> dict[str, str]:
    python = wanted.named.value.python
    return {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "platform_machine": wanted.lock.platform,
        "sys_platform": "linux",
        "platform_system": "Linux",
        "extra": "",
    }


def _left_out(have: Mapping[str, str], wanted: RequiredPackages) -> Iterator[PackageDifference]:
    for name, version in have.items():
        one = _pattern(name, wanted.named.value.left_out)
        if one is not None:
            who = (one.breaks or one.reason,)
            yield PackageDifference(name, "left out", None, version, who, one.breaks is not None)


def _pattern(name: str, left_out: Collection[LeftOutPackages]) -> LeftOutPackages | None:
    return next((one for one in left_out if any(fnmatchcase(name, p) for p in one.packages)), None)


def _fits(version: str, requirement: Requirement) -> bool:
    """Local builds (+cpu) fit like their version; an unparsable version excludes nothing."""
    try:
        return requirement.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return True


def _public(version: str) -> str:
    try:
        return Version(version).public
    except InvalidVersion:
        return version
