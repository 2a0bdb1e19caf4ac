"""What the recipe itself says does not work, or was not seen to work, at these pins."""

from __future__ import annotations

from collections.abc import Iterator

from patchctl.findings.report import Finding, looked_at
from patchctl.language.messages import message
from patchctl.training.preflight.case import Case

LIMITS = "limits"


def check_limits(case: Case) -> Iterator[Finding]:
    """A limit is a note; what stops a run, by the recipe's `stops`, blocks until someone says that it is done away with."""
    for limit in case.run.limits:
        said = " ".join(limit.split())
        if limit in case.run.stops:
            todo = message("do what it says, then --accept {name}; or another recipe", name=LIMITS)
            yield looked_at("recipe", LIMITS, "error", said, todo)
        else:
            yield looked_at("recipe", LIMITS, "note", said, needed=False)
