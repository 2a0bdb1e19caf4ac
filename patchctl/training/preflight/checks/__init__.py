"""The checks, each a function of a Case that gives findings; `all_findings` runs them in the order they are printed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from patchctl.findings.report import Finding
from patchctl.language.messages import message
from patchctl.training.preflight.case import Case
from patchctl.training.preflight.checks.device_memory import check_device_memory
from patchctl.training.preflight.checks.devices import check_devices
from patchctl.training.preflight.checks.environment import check_environment
from patchctl.training.preflight.checks.host import check_host
from patchctl.training.preflight.checks.limits import check_limits
from patchctl.training.preflight.checks.network import check_network
from patchctl.training.preflight.checks.operators import check_operators
from patchctl.training.preflight.checks.ray import check_ray
from patchctl.training.preflight.checks.software import check_software
from patchctl.training.preflight.checks.storage import check_storage
from patchctl.training.preflight.checks.workspace import check_workspace

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

CHECKS: tuple[Callable[[Case], Iterator[Finding]], ...] = (
    check_limits,
    check_devices,
    check_software,
    check_operators,
    check_host,
    check_ray,
    check_network,
    check_environment,
    check_storage,
    check_device_memory,
    check_workspace,
)


def all_findings(case: Case, accepted: Collection[str] = ()) -> list[Finding]:
    """Every finding; those that the user accepts do not block."""
    found = [finding for check in CHECKS for finding in check(case)]
    return [replace(f, accepted=True) if f.name in accepted else f for f in found]
