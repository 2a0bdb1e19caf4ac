"""Asks a Python interpreter which packages its environment has, without importing them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence

from patchctl.errors import WrongUse
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.types import Profile
from patchctl.requirements.lockfile import this_platform
from patchctl.requirements.package_differences import PackageDifference, RequiredPackages, compare
from patchctl.requirements.sets import set_of
from patchctl.terminal.text import one_line

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
        done = subprocess.run(
            [python, "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=True,
            cwd="/",
            stdin=subprocess.DEVNULL,
        )
        found = json.loads(done.stdout.strip().splitlines()[-1])
        return {str(name): str(version) for name, version in found.items() if name and version}
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise WrongUse(f"{python} cannot be asked for its packages: {one_line(str(error))}") from error


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
    words = {
        "missing": "missing",
        "excluded": "of excluded versions",
        "left out": "installed but left out of the lock",
        "other": "of other versions than the lock",
    }
    parts = []
    for kind, some in counts.items():
        if some:
            names = ", ".join(f"{d.name} {d.found}" if d.found else d.name for d in some[:shown])
            more = f" and {len(some) - shown} more" if len(some) > shown else ""
            parts.append(f"{len(some)} {words[kind]} ({names}{more})")
    return "; ".join(parts)
