"""patchctl bundle: create, verify, show and unpack."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from patchctl.cli.app import App, json_option, profile_option
from patchctl.cli.sources import Sources, bundle_argument, source_options

if TYPE_CHECKING:
    from patchctl.bundle.reader import Bundle


@click.group("bundle")
def command() -> None:
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


@command.command("create", short_help="Write the bundle of a profile.")
@profile_option
@click.option(
    "--out",
    "-o",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where it is written [default: PROFILE.bundle.tar].",
)
@source_options
@click.option("--skip-unavailable", is_flag=True, help="Go on without sources that cannot be had, and list them.")
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
@json_option("patchctl.report.bundle:CreateOutput")
@click.pass_obj
def create(
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
    """
    from patchctl.bundle.create import create_bundle
    from patchctl.bundle.signature import SigningKey
    from patchctl.report.bundle import created_output, created_text

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


@command.command("verify", short_help="Check every byte of one.")
@bundle_argument
@json_option("patchctl.report.bundle:BundleOutput")
@click.pass_obj
def verify(app: App, bundle: Bundle, as_json: bool) -> None:
    """Check a bundle from its first byte to its last, and name what was changed: a member, a header, a padding.

    Exit code 3 when something was, 2 when it is no bundle. That its digests agree says that it is whole. Who made it say
    --sha256 with a digest from elsewhere, and the signature in FILE.sig with --allowed-signers or the user configuration.
    """
    from patchctl.report.bundle import bundle_output, verify_text

    app.emit("bundle.verify", bundle_output(bundle, members=False), lambda style: verify_text(bundle, style), as_json)


@command.command("show", short_help="Say what is in one.")
@bundle_argument
@click.option("--members", is_flag=True, help="Every file in it, with size and sha256.")
@json_option("patchctl.report.bundle:BundleOutput")
@click.pass_obj
def show(app: App, bundle: Bundle, members: bool, as_json: bool) -> None:
    """Say what a bundle holds, after it was checked: profile, sources, what is missing, size, digest."""
    from patchctl.report.bundle import bundle_output, show_text

    data = bundle_output(bundle, members=members)
    app.emit("bundle.show", data, lambda style: show_text(bundle, style, members=members), as_json)


@command.command("unpack", short_help="Write its distribution to a folder.")
@bundle_argument
@click.option(
    "--to",
    "folder",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="A folder that is new or empty.",
)
@json_option("patchctl.report.bundle:UnpackOutput")
@click.pass_obj
def unpack(app: App, bundle: Bundle, folder: Path, as_json: bool) -> None:
    """Write the distribution of a bundle to a folder, for every verb that takes --root.

    The sources stay in the bundle: `patchctl fetch --bundle FILE` puts them into the cache.
    """
    from patchctl.bundle.unpack import unpack_distribution
    from patchctl.report.bundle import UnpackOutput

    folder = folder.absolute()
    count = unpack_distribution(bundle, folder)
    data = UnpackOutput(bundle.path, bundle.sha256, folder, count)
    app.emit(
        "bundle.unpack", data, lambda style: [f"{count} files in {folder}: patchctl --root {folder} list"], as_json
    )
