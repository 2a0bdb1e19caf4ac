"""What a Python environment has, by asking its interpreter; nothing that it has is imported."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence

from patchctl.errors import WrongUse
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.types import Profile
from patchctl.requirements.compare import PackageDifference, Wanted, compare
from patchctl.requirements.lockfile import this_platform
from patchctl.requirements.sets import set_of
from patchctl.terminal.text import one_line

_SECONDS = 60
# What comes first on the path is what imports see.
_PROBE = """
import importlib.metadata, json
found = {}
for one in importlib.metadata.distributions():
    found.setdefault(one.metadata["Name"] or "", one.version)
print(json.dumps(found))
"""


def installed_in(python: str) -> dict[str, str]:
    """The versions of an environment's distributions by name. Raises WrongUse where the interpreter cannot be asked."""
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
        raise WrongUse(f"{python} cannot be asked what it has: {one_line(str(error))}") from error


def differences(dist: Distribution, profile: Profile, installed: Mapping[str, str]) -> list[PackageDifference] | None:
    """How an environment of this machine differs from the profile's lock; None where it names no release, or none is for this
    machine. Raises BadManifest for a lock that is not as generated.
    """
    named = set_of(dist, profile)
    if named is None:
        return None
    try:
        platform = this_platform()
    except WrongUse:
        return None
    return compare(installed, Wanted.read(named, platform))


def summary(found: Sequence[PackageDifference], shown: int = 6) -> str:
    """How many packages are missing, excluded, left out or merely other, and the first of them."""
    counts = {kind: [d for d in found if d.kind == kind] for kind in ("missing", "excluded", "left out", "other")}
    words = {
        "missing": "missing",
        "excluded": "of versions that somebody excludes",
        "left out": "there and left out of the lock",
        "other": "of other versions than the lock's",
    }
    parts = []
    for kind, some in counts.items():
        if some:
            names = ", ".join(f"{d.name} {d.found}" if d.found else d.name for d in some[:shown])
            more = f" and {len(some) - shown} more" if len(some) > shown else ""
            parts.append(f"{len(some)} {words[kind]} ({names}{more})")
    return "; ".join(parts)
