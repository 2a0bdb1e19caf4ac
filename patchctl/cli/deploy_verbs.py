"""fetch, bundle and install: sources to this machine, to others without a network, and into a Python environment."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from patchctl.cli.app import App, flag, format_option, json_option, print_findings, profile_option, workspace_option
from patchctl.cli.sources import Sources, bundle_argument, source_options, source_or_bundle_options
from patchctl.errors import SourceUnavailable, WrongUse
from patchctl.terminal.text import Style, visible_line

if TYPE_CHECKING:
    from patchctl.bundle.reader import Bundle


@click.command("fetch")
@profile_option
@source_or_bundle_options
@flag("--refresh", "Pass the cache by, and put what is fetched in its place; a base that proves intact stays.")
@flag("--skip-unavailable", "Go on without sources that cannot be had, as long as one can be, and list them.")
@json_option("patchctl.report.sources:FetchOutput")
@click.pass_obj
def fetch_command(
    app: App,
    profile: str,
    sources: Sources,
    refresh: bool,
    skip_unavailable: bool,
    as_json: bool,
) -> None:
    """Bring every pinned source of a profile into the cache and prove it.

    A git source is proven by its commit id, a source distribution by its sha256; sources that are in the cache already
    are read again and proven too. Tried in this order: cache, --mirror, the user configuration's mirrors, the manifest's
    remotes, the package index that pip is configured for.

    With --bundle the sources come from there, and its distribution is put beside them: the last line says where.

    \b
    Examples:
      patchctl fetch --profile qwen3-235b
      patchctl fetch --profile qwen3-235b --refresh
    """
    from patchctl.report.sources import FetchedSource, FetchOutput
    from patchctl.source.intact import check_base
    from patchctl.source.obtain import BUNDLE_HINT, obtain
    from patchctl.source.types import SeveralUnavailable
    from patchctl.stack.plan import Skipped
    from patchctl.terminal.progress import size_text

    dist, options = sources.distribution, sources.options(refresh=refresh)
    progress = app.progress(as_json)
    rows: list[FetchedSource] = []
    missing: list[tuple[str, SourceUnavailable]] = []
    for name, stack in dist.stacks_of(dist.profile(profile)).items():
        began = time.monotonic()
        try:
            base = obtain(dist.upstream(name), stack, options, progress)
        except SourceUnavailable as failure:
            missing.append((name, failure))
            continue
        objects = check_base(base)
        seconds = round(time.monotonic() - began, 3)
        rows.append(FetchedSource(base, base.fetched_bytes == 0, base.fetched_bytes, objects, seconds))
    if missing and not (skip_unavailable and rows):
        goes_on = "; --skip-unavailable goes on without them" if rows else "; nothing could be had"
        hint = BUNDLE_HINT if sources.bundle else f"--mirror NAME=URL adds places{goes_on}"
        raise SeveralUnavailable(dict(missing), hint=hint)

    def text(style: Style) -> Iterable[str]:
        for row in rows:
            base, how = row.base, "cache" if row.from_cache else size_text(row.bytes)
            head = f"{base.upstream:<12} {base.form:<6} {base.commit[:12]}  {style.good('proven')}"
            yield f"{head}  {how}, {row.seconds} s  {base.origin}"
        for name, failure in missing:
            yield f"{name:<12} {style.note('skipped')}"
            yield from (visible_line(f"    tried {t.place}: {t.reason}") for t in failure.tried)
        if sources.bundle is not None:
            yield f"distribution {dist.root}: patchctl --root {shlex.quote(str(dist.root))} apply {dist.profile(profile).options}"

    skipped = [Skipped(name, tuple(failure.tried)) for name, failure in missing]
    data = FetchOutput(profile, dist.root, rows, skipped)
    app.emit("fetch", data, text, as_json)


@click.group("bundle")
def bundle_command() -> None:
    """Carry a profile to machines without a network: one file with its distribution and all of its sources.

    \b
    patchctl bundle create --profile qwen3-235b            where there is a network; prints the file's sha256
    patchctl bundle create --profile qwen3-235b --sign ~/.ssh/id_ed25519       the same, and FILE.sig beside it
    patchctl apply --bundle FILE --sha256 HEX --profile qwen3-235b         where there is none
    patchctl bundle verify FILE --allowed-signers FILE
    patchctl bundle show FILE --members
    patchctl bundle unpack FILE --to DIR       the distribution as files, for all other verbs: patchctl --root DIR list

    The same distribution and sources give the same bytes on every machine, signed or not. docs/bundles.md says how signatures work.
    """


@bundle_command.command("create", short_help="Write the bundle of a profile.")
@profile_option
@click.option(
    "--out",
    "-o",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where it is written [default: PROFILE.bundle.tar].",
)
@source_options
@flag("--skip-unavailable", "Go on without sources that cannot be had, and list them.")
@click.option(
    "--sign",
    type=click.Path(path_type=Path),
    metavar="KEY",
    help="Sign it, into BUNDLE.sig, with this private key of ssh, or this public one whose private half an agent has.",
)
@click.option(
    "--sbom",
    type=click.Choice(["cyclonedx", "spdx"]),
    help="Add the profile's bill of materials, as `sbom` writes it; `unpack` puts it beside the distribution's README.",
)
@json_option("patchctl.report.sources:CreateOutput")
@click.pass_obj
def bundle_create(
    app: App,
    profile: str,
    out: Path | None,
    sources: Sources,
    skip_unavailable: bool,
    sign: Path | None,
    sbom: str | None,
    as_json: bool,
) -> None:
    """Write one file with everything that `apply`, `verify` and `status` need of a profile.

    In it: manifests, locks, patches, carried files and licences of the distribution, and each form of each source that
    can be had (for a source distribution its archive, for git a pack of the pinned commit's tree). The profile is
    built and compared with the lock first: what cannot be applied here is not bundled. Prints the file's sha256.

    \b
    Examples:
      patchctl bundle create --profile qwen3-235b
      patchctl bundle create --profile qwen3-235b --sign ~/.ssh/id_ed25519
    """
    from patchctl.bundle.create import create_bundle
    from patchctl.bundle.signature import SigningKey
    from patchctl.report.sources import created_output, created_text

    key = SigningKey.load(sign) if sign else None
    dist = app.distribution
    chosen = dist.profile(profile)
    out = (out or Path(f"{profile}.bundle.tar")).absolute()
    options = sources.options()
    beside = {}
    if sbom:
        from patchctl.sbom.contents import contents_of
        from patchctl.sbom.forms import name_of, render

        contents = contents_of(dist, chosen)
        beside = {name_of(contents, sbom): render(contents, sbom)}
    created = create_bundle(
        dist, chosen, out, options, app.progress(as_json), skip_unavailable=skip_unavailable, key=key, beside=beside
    )
    app.emit("bundle.create", created_output(created), lambda style: created_text(created, style), as_json)


@bundle_command.command("verify", short_help="Check every byte of one.")
@bundle_argument
@json_option("patchctl.report.sources:BundleOutput")
@click.pass_obj
def bundle_verify(app: App, bundle: Bundle, as_json: bool) -> None:
    """Check a bundle from its first byte to its last, and name what was changed: a member, a header, a padding.

    Exit code 3 when something was, 2 when it is no bundle. That its digests agree says that it is whole. Who made it say
    --sha256 with a digest from elsewhere, and the signature in FILE.sig with --allowed-signers or the user configuration.

    \b
    Examples:
      patchctl bundle verify FILE --sha256 HEX
      patchctl bundle verify FILE --allowed-signers FILE
    """
    from patchctl.report.sources import bundle_output, verify_text

    app.emit("bundle.verify", bundle_output(bundle, members=False), lambda style: verify_text(bundle, style), as_json)


@bundle_command.command("show", short_help="Say what is in one.")
@bundle_argument
@flag("--members", "Every file in it, with size and sha256.")
@json_option("patchctl.report.sources:BundleOutput")
@click.pass_obj
def bundle_show(app: App, bundle: Bundle, members: bool, as_json: bool) -> None:
    """Say what a bundle holds, after it was checked: profile, sources, what is missing, size, digest.

    \b
    Examples:
      patchctl bundle show FILE
      patchctl bundle show FILE --members
    """
    from patchctl.report.sources import bundle_output, show_text

    data = bundle_output(bundle, members=members)
    app.emit("bundle.show", data, lambda style: show_text(bundle, style, members=members), as_json)


@bundle_command.command("unpack", short_help="Write its distribution to a folder.")
@bundle_argument
@click.option(
    "--to",
    "folder",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="A folder that is new or empty.",
)
@json_option("patchctl.report.sources:UnpackOutput")
@click.pass_obj
def bundle_unpack(app: App, bundle: Bundle, folder: Path, as_json: bool) -> None:
    """Write the distribution of a bundle to a folder, for every verb that takes --root.

    The sources stay in the bundle: `patchctl fetch --bundle FILE` puts them into the cache.

    \b
    Examples:
      patchctl bundle unpack FILE --to DIR
      patchctl bundle unpack FILE --to DIR --sha256 HEX
    """
    from patchctl.bundle.reader import unpack_distribution
    from patchctl.report.sources import UnpackOutput

    folder = folder.absolute()
    count = unpack_distribution(bundle, folder)
    data = UnpackOutput(bundle.path, bundle.sha256, folder, count)
    line = f"{count} files in {folder}: patchctl --root {shlex.quote(str(folder))} list"
    app.emit("bundle.unpack", data, lambda style: [line], as_json)


@click.command("install")
@workspace_option
@click.option("--python", metavar="PY", required=True, help="The interpreter of the environment, which has pip.")
@flag("--editable", "Lead to the trees instead of copying them: each later apply counts.", "-e")
@flag("--build-native", "Let upstream's builds compile their extensions with what is there: compilers, CANN, torch.")
@flag("--no-build-isolation", "Run setup.py with the environment's setuptools, instead of fetching one for this run.")
@flag("--dry-run", "Check and build everything, and install nothing.")
@format_option("patchctl.report.machine:InstallOutput")
@click.pass_obj
def install_command(
    app: App,
    workspace: Path,
    python: str,
    editable: bool,
    build_native: bool,
    no_build_isolation: bool,
    dry_run: bool,
    output: str,
) -> None:
    """Put the patched trees of a workspace into a Python environment, without their dependencies.

    Each package gets upstream's own name, version and entry points; nothing is compiled unless asked. A workspace with
    edits, or another one than the lock promises, is refused, and so is an environment in which another place would hide
    a package. Afterwards Python is asked; `patchctl status --python PY` asks again at any time.

    \b
    patchctl install --workspace workspace --python .venv/bin/python
    patchctl install --workspace workspace --python /usr/local/bin/python3 --editable --no-build-isolation
    """
    from patchctl.findings import Shown
    from patchctl.install.install import InstallOptions, install, interpreter
    from patchctl.manifest.distribution import Distribution
    from patchctl.report.machine import InstallOutput, install_report, install_text

    workspace = workspace.absolute()
    root = app.root_of(workspace)
    if root is None:
        raise WrongUse("the distribution that the workspace was made from is not there", hint="name it with --root DIR")
    app.show_root(root)
    options = InstallOptions(interpreter(python), editable, build_native, not no_build_isolation, dry_run)
    found = install(workspace, Distribution.load(root, app.cache_folder), options, app.progress(output == "json"))
    data = InstallOutput(workspace, options, found)
    shown = Shown(install_report(found, options), "install")
    print_findings(app, output, shown, data, lambda style: install_text(found, options, style))
