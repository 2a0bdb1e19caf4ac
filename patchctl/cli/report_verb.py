"""patchctl report."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from patchctl.cli.app import App, complete_profile, json_option, release_option
from patchctl.errors import LocalEdits, WrongUse


@click.command("report")
@click.option("--profile", "-p", metavar="NAME", shell_complete=complete_profile, help="Only what this profile has.")
@release_option
@click.option(
    "--out",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    metavar="FILE",
    default=Path("report.html"),
    show_default=True,
    help="Where the page is written; - is standard output.",
)
@click.option(
    "--drift",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Show the matrix of this run: what `patchctl drift --matrix --json` printed.",
)
@click.option(
    "--sbom",
    type=click.Choice(["cyclonedx", "spdx"]),
    help="Write the profile's bill of materials beside the page, as `sbom` writes it, and link it.",
)
@click.option("--force", is_flag=True, help="Write over a file that is no such page.")
@json_option("patchctl.report.catalog:ReportOutput")
@click.pass_obj
def command(
    app: App, profile: str | None, out: Path, drift: Path | None, sbom: str | None, force: bool, as_json: bool
) -> None:
    """Write what there is as one HTML page, to be read, searched, printed and sent.

    Profiles, stacks, patches with switch, proof and status, who touches which file of an upstream, what features require of
    each other, recipes and their features, and with --drift how patches fare on other releases. The page loads nothing;
    PAGE#FEATURE opens a feature. The same distribution gives the same bytes. A file that is no such page is not replaced.

    \b
    Examples:
      patchctl report --out patchctl.html
      patchctl drift --matrix --json > drift.json
      patchctl report --profile qwen3-235b --drift drift.json --out qwen3-235b.html
    """
    from patchctl.atomic import replace_file
    from patchctl.catalog.overview import overview
    from patchctl.drift.saved import read_drift
    from patchctl.report.catalog import ReportOutput, written_text
    from patchctl.report.page import page

    to_stdout = out == Path("-")
    if to_stdout and as_json:
        raise WrongUse("--json and --out - both write to standard output", hint="name a file with --out FILE")
    if not (to_stdout or force):
        _refuse_others(out)
    saved = read_drift(drift) if drift is not None else None
    if sbom and (profile is None or to_stdout):
        raise WrongUse(
            "--sbom needs one profile, and a file that the page is written to", hint="add --profile NAME and --out FILE"
        )
    seen = overview(app.distribution, profile)
    name = None
    if sbom and profile:
        from patchctl.sbom.contents import contents_of
        from patchctl.sbom.forms import name_of, render

        contents = contents_of(app.distribution, app.distribution.profile(profile))
        name = name_of(contents, sbom)
        replace_file(out.absolute().with_name(name), render(contents, sbom))
    content = page(seen, saved, name)
    if to_stdout:
        sys.stdout.buffer.write(content)
        return
    replace_file(out.absolute(), content)
    file = str(out.absolute())
    data = ReportOutput(file, seen, saved.problem if saved else None)
    app.emit("report", data, lambda style: written_text(file, seen, saved, style), as_json)


def _refuse_others(out: Path) -> None:
    """Raise LocalEdits for a file, or anything else, that `report` has not written."""
    from patchctl.report.page import is_page

    ours = not os.path.lexists(out)
    if out.is_file() and not out.is_symlink():
        with out.open("rb") as file:
            ours = is_page(file.read(2048))
    if not ours:
        raise LocalEdits(
            f"{out} is no page that `report` wrote",
            [str(out)],
            hint="name another with --out, or write over it with --force",
        )
