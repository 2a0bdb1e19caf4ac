"""patchctl list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from patchctl.cli.app import App, complete_profile, complete_upstream, json_option, release_option

KINDS = ("releases", "profiles", "stacks", "patches", "requirements")


@click.command("list")
@click.argument("what", metavar="[WHAT]", type=click.Choice(KINDS), required=False)
@click.option("--profile", "-p", metavar="NAME", shell_complete=complete_profile, help="Only what this profile has.")
@release_option
@click.option("--upstream", metavar="NAME", shell_complete=complete_upstream, help="Only what concerns this upstream.")
@json_option("patchctl.report.catalog:ListOutput")
@click.pass_obj
def command(app: App, what: str | None, profile: str | None, upstream: str | None, as_json: bool) -> None:
    """List what the distribution has: releases, profiles, stacks, patches and requirements.

    WHAT is one of releases, profiles, stacks, patches and requirements; without it, all of them are listed. `patchctl show` tells
    all about one patch.

    \b
    Examples:
      patchctl list
      patchctl list patches --profile qwen3-235b
    """
    from patchctl.catalog.features import Catalog
    from patchctl.report.catalog import ListOutput, list_text

    catalog = Catalog(app.distribution)
    parts: dict[str, Callable[[], Sequence[Any]]] = {
        "releases": lambda: catalog.releases(profile, upstream),
        "profiles": lambda: catalog.profiles(profile, upstream),
        "stacks": lambda: catalog.stacks(profile, upstream),
        "patches": lambda: catalog.patches(profile, upstream),
        "requirements": lambda: catalog.requirements(profile),
    }
    rows = {kind: parts[kind]() for kind in KINDS if what in (None, kind)}
    shown = what or "overview"
    app.emit("list", ListOutput(shown, **rows), lambda style: list_text(shown, rows, style), as_json)
