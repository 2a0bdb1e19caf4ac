"""Asks a Python interpreter which packages its environment has, without importing them.

Compares an environment with a lock: packages that are missing, excluded by the trees, or merely of another version.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from patchctl.doc import Doc
from patchctl.errors import WrongUse
from patchctl.language import Translatable, joined, message
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.requirement_types import Platform
from patchctl.manifest.types import Profile
from patchctl.python_probe import PythonProbeFailed, ask_python
from patchctl.requirements.declared import Declared, read_declared
from patchctl.requirements.lockfile import RequirementsLock, read_lock, this_platform
from patchctl.requirements.sets import NamedSet, set_of

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
        return self.described()

    def described(self) -> Translatable:
        """The difference in one sentence."""
        values = {"name": self.name, "locked": self.locked, "found": self.found, "who": joined(self.who)}
        if self.kind == "missing":
            return message("{name} is missing; the lock has {locked}, for {who}", **values)
        if self.kind == "excluded":
            return message("{name} is {found}, the lock has {locked}; {who}", **values)
        if self.kind == "left out":
            return message("{name} {found} is installed, but left out of the lock: {who}", **values)
        return message("{name} {found} (lock {locked})", **values)


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
            who = tuple(message("{title} wants {requirement}", title=t, requirement=r) for t, r, _ in against)
            found.append(PackageDifference(name, "excluded", one.version, version, who, any(s for _, _, s in against)))
        elif _public(version) != _public(one.version):
            found.append(PackageDifference(name, "other", one.version, version, (), False))
    return sorted(found, key=lambda d: (not d.matters, d.kind == "other", d.name))


def _limits(wanted: RequiredPackages, needs: Collection[str]) -> dict[str, list[tuple[str, Requirement, bool]]]:
    """Return by name who requires a package, the limits, and whether training fails without it.

    Limits that the lock itself violates were overridden and exclude nothing.
    """
    value = wanted.named.value
    less = {(d.upstream, d.name) for d in value.declared if d.optional is not None or d.limits is not None}
    asked = [(one.title, needed, (one.upstream, one.file) not in less) for one, needed in _asked(wanted)]
    asked += [(message("the recipe"), Requirement(text), True) for text in needs]
    found: dict[str, list[tuple[str, Requirement, bool]]] = {}
    for title, requirement, strict in asked:
        name = canonicalize_name(requirement.name)
        locked = wanted.lock.packages.get(name)
        if locked is not None:
            holds = requirement if _fits(locked.version, requirement) else Requirement(name)
            found.setdefault(name, []).append((title, holds, strict))
    return found


def _asked(wanted: RequiredPackages) -> Iterator[tuple[Declared, Requirement]]:
    for one in wanted.declared:
        for requirement in map(Requirement, one.requirements):
            if requirement.marker is None or requirement.marker.evaluate(_markers(wanted)):
                yield one, requirement


def contradictions(wanted: RequiredPackages, pins: Collection[str]) -> Iterator[str]:
    """Yield what a tree asks for and the lock, or the release by one of its own versions (`pins`), has otherwise.

    Files without which training works do not count, nor packages with an override of set.yaml, which has its reason there.
    """
    value = wanted.named.value
    optional = {(d.upstream, d.name) for d in value.declared if d.optional is not None}
    reasons = {canonicalize_name(r.name): r for r in (Requirement(o.requirement) for o in value.overrides)}
    have = {name: one.version for name, one in wanted.lock.packages.items()}
    for pin in map(Requirement, pins):
        have |= {canonicalize_name(pin.name): one.version for one in pin.specifier if one.operator == "=="}
        reason = reasons.get(canonicalize_name(pin.name))
        if reason is not None and reason.specifier != pin.specifier:
            yield f"overrides say {reason}, and the release {pin.specifier}"
    for one, requirement in _asked(wanted):
        name = canonicalize_name(requirement.name)
        if name not in have or name in reasons or (one.upstream, one.file) in optional:
            continue
        if not _fits(have[name], requirement):
            what = f"{one.title} asks for {requirement}, and the release has {have[name]}"
            yield f"{what}: change its `runtime`, or give the reason in an override"


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
        one = next((o for o in wanted.named.value.left_out if any(fnmatchcase(name, p) for p in o.packages)), None)
        if one is not None:
            who = (one.breaks or one.reason,)
            yield PackageDifference(name, "left out", None, version, who, one.breaks is not None)


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


_SECONDS = 60
# What is first on the path is what imports see.
_PROBE = """
import importlib.metadata, json
found = {}
for one in importlib.metadata.distributions():
    found.setdefault(one.metadata["Name"] or "", one.version)
print(json.dumps(found))
"""


def installed_in(python: str) -> dict[str, str]:
    """Return the versions of an environment's distributions by name. Raises WrongUse if that fails."""
    try:
        found = ask_python(python, _PROBE, seconds=_SECONDS)
    except PythonProbeFailed as error:
        what = message("{python} cannot be asked for its packages: {error}", python=python, error=error.what)
        raise WrongUse(what) from error
    return {str(name): str(version) for name, version in found.items() if name and version}


def differences(dist: Distribution, profile: Profile, installed: Mapping[str, str]) -> list[PackageDifference] | None:
    """Return how an environment differs from the profile's lock; None without a lock for this machine.

    Raises BadManifest for a lock that is not as generated.
    """
    named = set_of(dist, profile)
    if named is None:
        return None
    try:
        platform = this_platform()
    except WrongUse:
        return None
    return compare(installed, RequiredPackages.read(named, platform))


def summary(found: Sequence[PackageDifference], shown: int = 6) -> str:
    """Summarise the differences by kind, with the first packages of each."""
    counts = {kind: [d for d in found if d.kind == kind] for kind in ("missing", "excluded", "left out", "other")}
    parts = []
    for kind, some in counts.items():
        if some:
            names = joined(f"{d.name} {d.found}" if d.found else d.name for d in some[:shown])
            if len(some) > shown:
                names = message("{names} and {more} more", names=names, more=len(some) - shown)
            parts.append(_of_kind(kind, len(some), names))
    return joined(parts, "; ")


def _of_kind(kind: str, count: int, names: str) -> Translatable:
    if kind == "missing":
        return message("{count} missing ({names})", count=count, names=names)
    if kind == "excluded":
        return message("{count} of excluded versions ({names})", count=count, names=names)
    if kind == "left out":
        return message("{count} installed but left out of the lock ({names})", count=count, names=names)
    return message("{count} of other versions than the lock ({names})", count=count, names=names)
