"""list, show, report, requirements and sbom: what a distribution has."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from patchctl.cli.app import (
    App,
    complete,
    complete_upstream,
    file_option,
    flag,
    json_option,
    optional_profile,
    optional_workspace,
    profile_option,
    release_option,
    verbose_option,
)
from patchctl.errors import LocalEdits, WrongUse
from patchctl.manifest.requirement_types import PLATFORMS

if TYPE_CHECKING:
    from patchctl.manifest.distribution import Distribution

KINDS = ("releases", "profiles", "stacks", "patches", "requirements")


@click.command("list")
@click.argument("what", metavar="[WHAT]", type=click.Choice(KINDS), required=False)
@optional_profile("Only what this profile has.")
@release_option
@click.option("--upstream", metavar="NAME", shell_complete=complete_upstream, help="Only what concerns this upstream.")
@verbose_option("everything about each: as WHAT does, of every kind")
@json_option("patchctl.report.catalog:ListOutput")
@click.pass_obj
def list_command(
    app: App, what: str | None, profile: str | None, upstream: str | None, verbose: bool, as_json: bool
) -> None:
    """List what the distribution has: releases, profiles, stacks, patches and requirements.

    Without WHAT only their names; WHAT is one of releases, profiles, stacks, patches and requirements, and lists these in full.
    `patchctl show` tells all about one patch.

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
    app.emit("list", ListOutput(shown, **rows), lambda style: list_text(shown, rows, style, verbose=verbose), as_json)


def complete_feature(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion: the features of the distribution, by the names of their files: nothing is parsed for it."""

    def features(dist: Distribution) -> set[str]:
        return {f.stem.split("-", 2)[-1] for stack in dist.stacks.values() for f in dist.patch_files(stack)}

    return sorted(complete(ctx, incomplete, features))


@click.command("show")
@click.argument("target", metavar="FEATURE[@UPSTREAM]|PATCHFILE", shell_complete=complete_feature)
@flag("--diff", "Print the diff as well.")
@json_option("patchctl.report.catalog:ShowOutput")
@click.pass_obj
def show_command(app: App, target: str, diff: bool, as_json: bool) -> None:
    """Show one patch: what it is for, its switch, its files, where it is used, its tests.

    A feature that spans several upstreams has a patch in each of them: all are shown, or the one of UPSTREAM. PATCHFILE
    is the name of a patch file or its path, which need not belong to a stack.

    \b
    Examples:
      patchctl show skip_old_log_prob
      patchctl show chunked_moe@vllm-ascend --diff
    """
    from patchctl.catalog.features import Catalog
    from patchctl.report.catalog import ShowOutput, show_text

    details = [d if diff else replace(d, diff=None) for d in Catalog(app.distribution).details(target)]
    app.emit("show", ShowOutput(details), lambda style: show_text(details, style), as_json)


@click.command("report")
@optional_profile("Only what this profile has.")
@release_option
@file_option(
    "--out",
    "-o",
    default=Path("report.html"),
    show_default=True,
    help="Where the page is written; - is standard output.",
)
@file_option("--drift", help="Show the matrix of this run: what `patchctl drift --matrix --json` printed.")
@click.option(
    "--sbom",
    type=click.Choice(["cyclonedx", "spdx"]),
    help="Write the profile's bill of materials beside the page, as `sbom` writes it, and link it.",
)
@flag("--force", "Write over a file that is no such page.")
@json_option("patchctl.report.catalog:ReportOutput")
@click.pass_obj
def report_command(
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


@click.command("requirements")
@profile_option
@click.option("--platform", type=click.Choice(PLATFORMS), help="Of which platform [default: this one].")
@flag("--elsewhere", "What another index than the package index has, which has no digests.")
@json_option("patchctl.report.machine:RequirementsOutput")
@click.pass_obj
def requirements_command(app: App, profile: str, platform: str | None, elsewhere: bool, as_json: bool) -> None:
    """Print what a profile runs on, as pip reads it: the lock of its requirements.

    Every version with its digests, resolved from what the trees, the profile and its recipes ask for. The lock holds all
    of it, so that pip has nothing left to resolve. On x86_64 some builds come from another index (--elsewhere).

    \b
    patchctl requirements -p qwen3-32b > lock.txt
    patchctl requirements -p qwen3-32b --elsewhere > elsewhere.txt
    pip install --no-deps --extra-index-url https://download.pytorch.org/whl/cpu/ -r elsewhere.txt
    pip install --no-deps --require-hashes -r lock.txt
    """
    from patchctl.report.machine import RequirementsOutput
    from patchctl.requirements.lockfile import read_lock, render, this_platform
    from patchctl.requirements.sets import required_set

    dist = app.distribution
    named = required_set(dist, dist.profile(profile))
    lock = read_lock(named, this_platform(platform))
    text = render(lock, named).get(elsewhere, "")
    packages, overrides = tuple(lock.packages.values()), named.value.overrides
    data = RequirementsOutput(profile, named.name, lock.platform, named.value.python, packages, overrides)
    app.emit("requirements", data, lambda style: text.splitlines(), as_json)


@click.command("sbom")
@profile_option
@click.option(
    "--format",
    "form",
    type=click.Choice(["cyclonedx", "spdx", "in-toto"]),
    required=True,
    help="CycloneDX 1.6, SPDX 2.3, or of a workspace an in-toto statement of how its trees were made; JSON.",
)
@optional_workspace("Of what is applied there: form, trees and left-out features.")
@file_option("--out", "-o", default=Path("-"), help="Where it is written [default: standard output].")
@file_option(
    "--sign", metavar="KEY", help="Sign the statement with this SSH key: FILE.sig, which `verify --statement` checks."
)
@click.pass_obj
def sbom_command(app: App, profile: str, form: str, workspace: Path | None, out: Path, sign: Path | None) -> None:
    """Print a profile's bill of materials: upstreams, patches, carried files and locked packages.

    Each upstream has its pin, purl, digests and licence; each patch its diff (CycloneDX), digest, feature, switch, licence, and the
    date and environment of its proof, or why there is none. Packages are those of every platform's lock. No source is needed.

    The same distribution gives the same bytes: the time is the newest that patches and proofs name, the serial number a digest of the
    content. With --workspace it is what `apply` recorded there; `verify --workspace` tells whether the trees still are that.

    \b
    patchctl sbom --profile qwen3-235b --format cyclonedx --out qwen3-235b.cdx.json
    patchctl sbom --profile qwen3-235b --format in-toto --workspace workspace --out trees.json --sign ~/.ssh/id_ed25519
    """
    if sign and (form != "in-toto" or out == Path("-")):
        raise WrongUse("--sign signs a statement in a file", hint="add --format in-toto --out FILE")
    from patchctl.atomic import make_folder, replacing
    from patchctl.bundle.signature import STATEMENT, SigningKey
    from patchctl.sbom.contents import contents_of
    from patchctl.sbom.forms import check_form, render

    check_form(form)
    key = SigningKey.load(sign) if sign else None
    place = workspace.absolute() if workspace else None
    data = render(contents_of(app.distribution, app.distribution.profile(profile), place), form)
    if out == Path("-"):
        sys.stdout.buffer.write(data)
        return
    make_folder(out.absolute().parent)
    with replacing(out.absolute()) as file:
        file.write(data)
        if key:
            key.sign_beside(out.absolute(), file, hashlib.sha256(data).hexdigest(), STATEMENT)
    print(f"wrote {out}")
