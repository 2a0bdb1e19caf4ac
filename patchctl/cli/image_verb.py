"""patchctl image: verify."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path, PurePosixPath

import click

from patchctl.cli.app import App, format_option, print_findings, statement_options
from patchctl.errors import WrongUse


@click.group("image")
def image_command() -> None:
    """Look into container images without building or running anything.

    \b
    docker save IMAGE --output image.tar                  or: buildah push IMAGE oci-archive:image.tar
    patchctl image verify image.tar
    docker export CONTAINER --output root.tar             the files of a container, running or not
    patchctl image verify root.tar
    """


@image_command.command("verify", short_help="Check the trees and the labels of an image.")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True), metavar="FILE")
@click.option(
    "--workspace",
    "-w",
    metavar="/DIR",
    help="The workspace in the image [default: its PATCHCTL_WORKSPACE, else /opt/patched].",
)
@statement_options
@click.option("--quiet", "-q", is_flag=True, help="With text: print findings, and nothing else.")
@format_option("patchctl.findings:VerifyOutput")
@click.pass_obj
def verify(
    app: App,
    file: Path,
    workspace: str | None,
    statement: Path | None,
    statement_signers: Path | None,
    quiet: bool,
    output: str,
) -> int:
    """Check the trees of an image in a file as `verify --workspace` does, and that its labels name them.

    FILE is a saved image (`docker save`), an OCI archive, or what `docker export` wrote of a container, which has no labels; -
    is standard input. Layers are compared with their digests, only the trees are unpacked, and nothing of the image runs. The trees are
    compared with the distribution here, not the image's. Which of them an interpreter imports is seen in a container alone:
    `patchctl status --python`.

    Exit code 1 with findings, 2 when it is no image or holds no workspace, 3 when a layer is not what its digest says.

    \b
    Examples:
      patchctl image verify image.tar
      docker save IMAGE | patchctl image verify -
    """
    from patchctl.check.rules import all_rules
    from patchctl.check.statement import read_statement
    from patchctl.findings import Shown, report_text, verify_output
    from patchctl.image.verify import verify_image

    said = (statement, read_statement(statement, app.trust(statement_signers))) if statement else None
    folder = PurePosixPath(workspace) if workspace else None
    with tempfile.NamedTemporaryFile(prefix="patchctl-image-", suffix=".tar") as kept:
        if file == Path("-"):
            if sys.stdin.isatty():
                raise WrongUse("standard input is a terminal", hint="`docker save IMAGE | patchctl image verify -`")
            shutil.copyfileobj(sys.stdin.buffer, kept)
            kept.flush()
        at = Path(kept.name) if file == Path("-") else file.absolute()
        report = verify_image(at, folder, app.distribution, app.progress(output == "json"), said)
    shown = Shown(report, "image.verify", app.found_root, all_rules() if output == "sarif" else {})
    print_findings(app, output, shown, verify_output(report), lambda style: report_text(report, style, quiet=quiet))
    return report.exit_code()
