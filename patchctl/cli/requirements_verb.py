"""patchctl requirements."""

from __future__ import annotations

import click

from patchctl.cli.app import App, json_option, profile_option
from patchctl.manifest.requirement_types import PLATFORMS


@click.command("requirements")
@profile_option
@click.option("--platform", type=click.Choice(PLATFORMS), help="Of which platform [default: this one].")
@click.option("--elsewhere", is_flag=True, help="What another index than the package index has, which has no digests.")
@json_option("patchctl.report.generated:RequirementsOutput")
@click.pass_obj
def command(app: App, profile: str, platform: str | None, elsewhere: bool, as_json: bool) -> None:
    """Print what a profile runs on, as pip reads it: the lock of its requirements.

    Every version with its digests, resolved from what the trees, the profile and its recipes ask for. The lock holds all
    of it, so that pip has nothing left to resolve. On x86_64 some builds come from another index (--elsewhere).

    \b
    patchctl requirements -p qwen3-32b > lock.txt
    patchctl requirements -p qwen3-32b --elsewhere > elsewhere.txt
    pip install --no-deps --extra-index-url https://download.pytorch.org/whl/cpu/ -r elsewhere.txt
    pip install --no-deps --require-hashes -r lock.txt
    """
    from patchctl.report.generated import RequirementsOutput
    from patchctl.requirements.lockfile import read_lock, render, this_platform
    from patchctl.requirements.sets import required_set

    dist = app.distribution
    named = required_set(dist, dist.profile(profile))
    lock = read_lock(named, this_platform(platform))
    text = render(lock, named).get(elsewhere, "")
    packages, overrides = tuple(lock.packages.values()), named.value.overrides
    data = RequirementsOutput(profile, named.name, lock.platform, named.value.python, packages, overrides)
    app.emit("requirements", data, lambda style: text.splitlines(), as_json)
