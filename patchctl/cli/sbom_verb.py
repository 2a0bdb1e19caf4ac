"""patchctl sbom."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import click

from patchctl.cli.app import App, profile_option
from patchctl.errors import WrongUse


@click.command("sbom")
@profile_option
@click.option(
    "--format",
    "form",
    type=click.Choice(["cyclonedx", "spdx", "in-toto"]),
    required=True,
    help="CycloneDX 1.6, SPDX 2.3, or of a workspace an in-toto statement of how its trees were made; JSON.",
)
@click.option(
    "--workspace",
    "-w",
    type=click.Path(path_type=Path, file_okay=False, readable=False),
    metavar="DIR",
    help="Of what is applied there: form, trees and left-out features.",
)
@click.option(
    "--out",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    metavar="FILE",
    default=Path("-"),
    help="Where it is written [default: standard output].",
)
@click.option(
    "--sign",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="KEY",
    help="Sign the statement with this SSH key: FILE.sig, which `verify --statement` checks.",
)
@click.pass_obj
def command(app: App, profile: str, form: str, workspace: Path | None, out: Path, sign: Path | None) -> None:
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
    from patchctl.sbom.contents import contents_of, state_of
    from patchctl.sbom.forms import check_form, render

    check_form(form)
    key = SigningKey.load(sign) if sign else None
    state = state_of(workspace.absolute()) if workspace else None
    data = render(contents_of(app.distribution, app.distribution.profile(profile), state), form)
    if out == Path("-"):
        sys.stdout.buffer.write(data)
        return
    make_folder(out.absolute().parent)
    with replacing(out.absolute()) as file:
        file.write(data)
        if key:
            key.sign_beside(out.absolute(), file, hashlib.sha256(data).hexdigest(), STATEMENT)
    print(f"wrote {out}")
