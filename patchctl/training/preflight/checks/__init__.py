"""The checks, each a function of a Case that gives findings; `all_findings` runs them in the order they are printed. Beside them what the
recipe says of itself, and the release that would fit what this machine has installed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from patchctl.findings import Finding, looked_at
from patchctl.language import message
from patchctl.training.preflight.case import Case
from patchctl.training.preflight.checks import (
    device_memory,
    devices,
    environment,
    host,
    network,
    ray,
    software,
    storage,
    workspace,
)

AREAS = {
    "recipe": message("recipe"),
    "devices": message("devices"),
    "software": message("software"),
    "host": message("host"),
    "network": message("network"),
    "environment": message("environment"),
    "storage": message("files and disk"),
    "device memory": message("memory of a device"),
    "workspace": message("patched trees"),
}
"""The areas by name, with their titles, in the order they are printed."""

LIMITS = "limits"
RELEASE = "release"


def check_limits(case: Case) -> Iterator[Finding]:
    """A limit is a note; what stops a run, by the recipe's `stops`, blocks until someone says that it is done away with."""
    for limit in case.run.limits:
        said = " ".join(limit.split())
        if limit in case.run.stops:
            todo = message("do what it says, then --accept {name}; or another recipe", name=LIMITS)
            yield looked_at("recipe", LIMITS, "error", said, todo)
        else:
            yield looked_at("recipe", LIMITS, "note", said, needed=False)


CHECKS: tuple[Callable[[Case], Iterator[Finding]], ...] = (
    check_limits,
    devices.check_devices,
    software.check_software,
    software.check_operators,
    host.check_host,
    ray.check_ray,
    network.check_network,
    environment.check_environment,
    storage.check_storage,
    device_memory.check_device_memory,
    workspace.check_workspace,
)


def all_findings(case: Case, accepted: Collection[str] = ()) -> list[Finding]:
    """Every finding; those that the user accepts do not block."""
    found = [finding for check in CHECKS for finding in check(case)]
    return [replace(f, accepted=True) if f.name in accepted else f for f in found]


def blocked_by_software(findings: Iterable[Finding]) -> bool:
    """Whether what is installed is in the way."""
    return any(f.rule == "software" and f.blocks for f in findings)


def fitting_release(
    case: Case, releases: Sequence[str], look: Callable[[str], tuple[Case, Sequence[Finding]] | None]
) -> Finding | None:
    """A note on the first of `releases` whose software this machine has. `look` gives the case and the findings of the same recipe on a
    release, None where the release has no such recipe."""
    for name in releases:
        seen = look(name)
        if seen is None or blocked_by_software(seen[1]):
            continue
        rest = len(dict.fromkeys(f.name for f in seen[1] if f.blocks))
        left = message("nothing is in the way there")
        if rest:
            left = message("{count} other findings are in the way there", count=rest)
        what = message(
            "this machine's software is that of release {fitting}, and {release} was looked at; {left}",
            fitting=name,
            release=case.run.release,
            left=left,
        )
        todo = f"patchctl preflight -p {case.run.profile} -r {case.run.name} --release {name}{case.run.repeated()}"
        return looked_at("recipe", RELEASE, "warning", what, todo, needed=False)
    return None
