"""patchctl identify."""

from __future__ import annotations

from pathlib import Path

import click

from patchctl.cli.app import App, json_option
from patchctl.errors import DONE, FINDINGS, BadManifest


@click.command("identify")
@click.argument(
    "folder", metavar="DIR", type=click.Path(path_type=Path, exists=True, file_okay=False, resolve_path=True)
)
@json_option("patchctl.identify.match:Identification")
@click.pass_obj
def command(app: App, folder: Path, as_json: bool) -> int:
    """Tell which pin a folder of sources is, by its content.

    DIR is a checkout, an unpacked source distribution, a package's folder, a part of one, or a site-packages folder.
    Files are compared by git's blob ids with the lists in manifests/trees; version strings are not looked at. Files
    that the distribution's patches changed are recognised. Reads only; exit code 1 when it is not exactly a pin.

    \b
    Examples:
      patchctl identify /vllm-workspace/vllm
      patchctl identify workspace/verl --json
    """
    from patchctl.identify.lists import known_trees
    from patchctl.identify.match import identify
    from patchctl.report.trees import identify_text

    known = known_trees(app.distribution)
    if not known:
        hint = "`patchctl lock` writes them"
        raise BadManifest("the distribution has no lists of its pins' files", where="manifests/trees", hint=hint)
    found = identify(folder, known)
    app.emit("identify", found, lambda style: identify_text(found, style), as_json)
    return DONE if found.exact else FINDINGS
