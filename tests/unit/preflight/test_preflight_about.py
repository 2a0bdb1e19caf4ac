"""The table of checks in docs/preflight.md has the findings that they give, by name and area, and the limits of the code."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from faults import FAULTS
from preflight_cases import REPOSITORY, Look

from patchctl.training.preflight import checks
from patchctl.training.preflight.checks import AREAS, devices, host, network, ray

CHECKS = Path(checks.__file__).parent
TABLE = re.compile(r"(?s)<!-- checks:begin -->\n.*?\|---\|\n(.*?)<!-- checks:end -->")
# Findings that are named after what they are of: a package, a variable, a path, a tree.
OPEN_NAMES = {
    "what the profile names under `runtime`",
    "every other package, by its name",
    "interface, or by the variable: HCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME, ...",
    "variables by name",
    "paths of the recipe",
    "workspace, each tree",
}
LIMITS = {
    "memory in use": [f"{devices.IDLE_SHARE:.0%}"],
    "/dev/shm": [
        f"{host.LEAST_SHARED_MEMORY // host.GIB} GiB",
        host._SHARES_MEMORY,
        f"{host.SHARED_MEMORY // host.GIB} GiB",
    ],
    "open files": [f"{host.OPEN_FILES:,}"],
    "processes": [f"{host.FEWEST_PROCESSES:,}", f"{host.PROCESSES:,}"],
    "huge pages": [f"{float(host.KEPT_SHARE):.0%}"],
    "controller memory": [f"{float(share):.0%}" for share in (host.RAY_KILLS_ABOVE, host.WELL_WITHIN)],
    "disk of Ray": [f"{float(ray._FULL):.0%}"],
    "ports of Ray": [str(port) for port in network.RAY_PORTS],
    "ports of HCCL": [f"the {network.HCCL_PORTS} from {network.HCCL_PORT} on"],
}


def rows() -> list[tuple[str, str, str]]:
    """Area, names and when it is wrong, of every row of the table."""
    table = TABLE.search((REPOSITORY / "docs" / "preflight.md").read_text(encoding="utf-8"))
    assert table is not None
    areas, read = {str(title): area for area, title in AREAS.items()}, list[tuple[str, str, str]]()
    for line in table[1].splitlines():
        title, names, _, wrong, _ = (cell.strip() for cell in line.strip("|").split("|"))
        read.append((areas[title] if title else read[-1][0], names, wrong))
    return read


NAMED = {(area, name) for area, names, _ in rows() if names not in OPEN_NAMES for name in names.split(", ")}
OPEN = {area for area, names, _ in rows() if names in OPEN_NAMES}


@pytest.mark.parametrize("name", LIMITS)
def test_the_limits_are_those_of_the_code(name: str) -> None:
    (wrong,) = [wrong for _, names, wrong in rows() if names == name]
    assert [limit for limit in LIMITS[name] if limit not in wrong] == []


def found(look: Look) -> set[tuple[str, str]]:
    """Area and name of every finding on a good node, on one with each fault, and on one of which nothing is known."""
    looks = [look(), *(look(fault.recipe, **fault.changed) for fault in FAULTS)]
    return {(finding.rule, finding.name or "") for one in looks for below in one.values() for finding in below}


def test_every_finding_is_described(look: Look) -> None:
    missing = sorted(pair for pair in found(look) - NAMED if pair[0] not in OPEN)
    assert not missing
    assert {area for area, _ in NAMED} | OPEN == {*AREAS}


def test_every_name_is_of_a_finding(look: Look) -> None:
    """Of those that no recording gives, the code has the name."""
    code = "".join(path.read_text(encoding="utf-8") for path in CHECKS.glob("*.py")).replace(
        '"room for {kind}"', '"room for weights"'
    )
    assert not [name for _, name in sorted(NAMED - found(look)) if f'"{name}"' not in code]
