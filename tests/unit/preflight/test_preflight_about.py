"""What checks say of themselves is of the findings that they give: names, and areas."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from faults import FAULTS
from preflight_cases import Look

from patchctl.training.preflight import checks
from patchctl.training.preflight.checks import ABOUT, AREAS

CHECKS = Path(checks.__file__).parent
NAMED = {(one.area, name) for one in ABOUT if not isinstance(one.names, str) for name in one.names}
# Areas whose findings are also named after what they are of: a package, a variable, a path, a tree.
OPEN = {one.area for one in ABOUT if isinstance(one.names, str)}


def found(look: Look) -> set[tuple[str, str]]:
    """Area and name of every finding on a good node, on one with each fault, and on one of which nothing is known."""
    looks = [look(), *(look(fault.recipe, **fault.changed) for fault in FAULTS)]
    return {(finding.rule, finding.name or "") for one in looks for below in one.values() for finding in below}


def test_every_finding_is_described(look: Look) -> None:
    missing = sorted(pair for pair in found(look) - NAMED if pair[0] not in OPEN)
    assert not missing
    assert {area for area, _ in NAMED} | OPEN == {*AREAS}


def test_every_name_is_of_a_finding(look: Look) -> None:
    """Of those that no recording gives, the code has the name, besides the description."""
    code = "".join(path.read_text(encoding="utf-8") for path in CHECKS.glob("*.py")).replace(
        '"room for {kind}"', '"room for weights"'
    )
    assert not [name for _, name in sorted(NAMED - found(look)) if code.count(f'"{name}"') < 2]
