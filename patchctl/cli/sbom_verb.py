"""patchctl sbom."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import click

from patchctl import extension
from patchctl.cli.app import App, profile_option
from patchctl.errors import WrongUse

# By format: what writes it, and the package of the extra `sbom` that this needs, with its import name.
_FORMS = {
    "cyclonedx": ("patchctl.sbom.as_cyclonedx:as_cyclonedx", "cyclonedx-python-lib", "cyclonedx"),
    "spdx": ("patchctl.sbom.as_spdx:as_spdx", "spdx-tools", "spdx_tools"),
}


@click.command("sbom")
@profile_option
@click.option(
    "--format", "form", type=click.Choice([*_FORMS]), required=True, help="CycloneDX 1.6 or SPDX 2.3, as JSON."
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
@click.pass_obj
def command(app: App, profile: str, form: str, workspace: Path | None, out: Path) -> None:
    """Print a profile's bill of materials: upstreams, patches, carried files and locked packages.

    Each upstream has its pin, purl, digests and licence; each patch its diff (CycloneDX), digest, feature, switch, licence, and the
    date and environment of its proof, or why there is none. Packages are those of every platform's lock. No source is needed.

    The same distribution gives the same bytes: the time is the newest that patches and proofs name, the serial number a digest of the
    content. With --workspace it is what `apply` recorded there; `verify --workspace` tells whether the trees still are that.

    \b
    patchctl sbom --profile qwen3-235b --format cyclonedx --out qwen3-235b.cdx.json
    """
    writer, package, module = _FORMS[form]
    if importlib.util.find_spec(module) is None:
        raise WrongUse(
            f"{package}, which writes {form}, is not installed", hint=f"{sys.executable} -m pip install {package}"
        )
    from patchctl.atomic import replace_file
    from patchctl.sbom.contents import contents_of, state_of

    state = state_of(workspace.absolute()) if workspace else None
    text = extension.load(writer)(contents_of(app.distribution, app.distribution.profile(profile), state))
    if out == Path("-"):
        sys.stdout.buffer.write(text.encode())
        return
    replace_file(out.absolute(), text.encode())
    print(f"wrote {out}")
