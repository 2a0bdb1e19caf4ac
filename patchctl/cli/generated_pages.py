"""Every page that is made from the code rather than from patches; a page is written only where a distribution keeps it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from patchctl.cli.output_pages import output_pages, with_generated
from patchctl.cli.variables import VARIABLES
from patchctl.exit_codes import EXIT_CODES


def generated_pages(root: Path) -> dict[str, str]:
    """Pages and schemas by path below `root`: what verbs print with --json, and the tables of reference pages."""
    kept = {path: one for path, one in _PAGES.items() if (root / path).is_file()}
    return output_pages(root) | {
        path: with_generated(root / path, source, lines()) for path, (source, lines) in kept.items()
    }


def _exit_codes() -> Iterator[str]:
    yield from ("", "| code | meaning | what to do |", "|---|---|---|")
    yield from (f"| {one.code} | {one.meaning} | {one.remedy} |" for one in EXIT_CODES)
    yield from ("", "## By command", "", "| code | command | when |", "|---|---|---|")
    for one in EXIT_CODES:
        for commands, when in one.cases.items():
            names = ", ".join(f"`{name}`" for name in commands.split(", ")) if commands else "any"
            yield f"| {one.code} | {names} | {when} |"


def _variables() -> Iterator[str]:
    for group, variables in VARIABLES.items():
        yield from ("", f"## {group}", "", "| variable | what it does | without it |", "|---|---|---|")
        yield from (f"| `{name}` | {what} | {default} |" for name, (what, default) in variables.items())


# The lines below the mark of each page, and what they are made from.
_PAGES: dict[str, tuple[str, Callable[[], Iterator[str]]]] = {
    "docs/exit-codes.md": ("patchctl/exit_codes.py", _exit_codes),
    "docs/environment.md": ("patchctl/cli/variables.py", _variables),
}
