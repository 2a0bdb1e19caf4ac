"""What the recipe itself says does not work at these pins."""

from __future__ import annotations

from collections.abc import Iterator

from patchctl.findings.report import Finding, looked_at
from patchctl.training.preflight.case import Case

LIMITS = "limits"


def check_limits(case: Case) -> Iterator[Finding]:
    """Each limit of the recipe blocks until somebody has read it: whether it matters on this machine, only a person knows."""
    for limit in case.run.limits:
        todo = f"another recipe, or --accept {LIMITS} where you have read it and go on all the same"
        yield looked_at("recipe", LIMITS, "error", " ".join(limit.split()), todo)
