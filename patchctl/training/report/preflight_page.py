"""The table of checks in docs/preflight.md, from what the checks say of themselves."""

from __future__ import annotations

from itertools import groupby

from patchctl.manifest.distribution import Distribution
from patchctl.training.preflight.checks import ABOUT, AREAS
from patchctl.training.report.practice_pages import filled

PAGE = "docs/preflight.md"


def pages(dist: Distribution) -> dict[str, str]:
    """Return the page with its table renewed; nothing where it is not kept."""
    page = dist.root / PAGE
    return (
        {PAGE: filled(page.read_text(encoding="utf-8", errors="replace"), "checks", table())} if page.is_file() else {}
    )


def table() -> str:
    """A row for each check, its area in the first row of the area."""
    lines = ["| area | finding | from | wrong when | source |", "|---|---|---|---|---|"]
    for area, checks in groupby(ABOUT, key=lambda one: one.area):
        for number, one in enumerate(checks):
            names = one.names if isinstance(one.names, str) else ", ".join(one.names)
            title = "" if number else str(AREAS[area])
            lines.append(f"| {title} | {names} | {one.of} | {one.wrong} | {one.source} |".replace("|  |", "| |"))
    return "".join(f"{line}\n" for line in lines)
