"""patchctl image: verify."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import click

from patchctl.cli.app import App, format_option, print_findings, statement_options
from patchctl.errors import WrongUse


@click.group("image")
def image_command() -> None:
    """Look into images and containers without building or running anything.

    \b
    patchctl image verify IMAGE                           or a container, running or not, of docker or podman
    buildah push IMAGE oci-archive:image.tar              or: docker save IMAGE --output image.tar
    patchctl image verify image.tar
    """


@contextmanager
def _room() -> Iterator[None]:
    """What a disk says that is too small for an image, with where its trees are unpacked."""
    from patchctl.os_errors import as_user_error, is_resource_error

    try:
        yield
    except OSError as error:
        if not is_resource_error(error):
            raise
        hint = "set TMPDIR to a folder with room for the image's trees, and with - for the image"
        place = Path(tempfile.gettempdir())
        raise as_user_error(error, "the image cannot be unpacked", hint, place) from error


@image_command.command("verify", short_help="Check the trees and the labels of an image.")
@click.argument("image", metavar="FILE|NAME")
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
    image: str,
    workspace: str | None,
    statement: Path | None,
    statement_signers: Path | None,
    quiet: bool,
    output: str,
) -> int:
    """Check the trees of an image or a container as `verify --workspace` does, and that its labels name them.

    FILE is a saved image (`docker save`), an OCI archive, or what `docker export` wrote of a container, which has no labels; -
    is standard input. NAME is a container, running or not, or an image that docker or podman has. Layers are compared with their
    digests, only the trees are unpacked, and nothing of the image runs. The trees are compared with the distribution here, not
    the image's. Which of them an interpreter imports is seen in a container alone: `patchctl status --python`.

    Exit code 1 with findings, 2 when it is no image, holds no workspace or is over a limit, 3 when a layer is not what its digest says.

    \b
    Examples:
      patchctl image verify image.tar
      ssh HOST docker save IMAGE | patchctl image verify -
    """
    from patchctl.check.rules import all_rules
    from patchctl.check.statement import read_statement
    from patchctl.findings import Shown, report_text, verify_output
    from patchctl.image import engine
    from patchctl.image.image_archive import ImageFile
    from patchctl.image.verify import verify_image
    from patchctl.scratch import scratch
    from patchctl.source.config import read_user_config

    said = (statement, read_statement(statement, app.trust(statement_signers))) if statement else None
    within = PurePosixPath(workspace) if workspace else None
    progress = app.progress(output == "json")
    with _room(), scratch("patchctl-image-") as folder:
        kept = folder / "image.tar"
        if image == "-":
            if sys.stdin.isatty():
                raise WrongUse("standard input is a terminal", hint="`docker save IMAGE | patchctl image verify -`")
            progress.note("reading standard input")
            with kept.open("xb") as out:
                shutil.copyfileobj(sys.stdin.buffer, out)
            file = ImageFile(kept, "standard input")
        elif Path(image).exists() or image.startswith(("/", ".")):
            file = ImageFile(Path(image).absolute(), image)
        else:
            progress.note(f"asking docker and podman for {image}")
            file = engine.save(image, kept)
        report = verify_image(file, within, app.distribution, progress, said, read_user_config().images)
    shown = Shown(report, "image.verify", app.found_root, all_rules() if output == "sarif" else {})
    print_findings(app, output, shown, verify_output(report), lambda style: report_text(report, style, quiet=quiet))
    return report.exit_code()
