"""patchctl status."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from patchctl.cli.app import App, json_option, workspace_option
from patchctl.errors import DONE, FINDINGS, WrongUse
from patchctl.language.messages import message


@click.command("status")
@workspace_option
@click.option("--python", metavar="PY", help="Also say which tree this interpreter really imports.")
@click.option("--labels", "as_labels", is_flag=True, help="Print what it holds as labels of an image, NAME=VALUE.")
@json_option("patchctl.workspace.status:Status")
@click.pass_obj
def command(app: App, workspace: Path, python: str | None, as_labels: bool, as_json: bool) -> int:
    """Say what a workspace holds: profile, form, pin, patches, edits, and whether it equals the lock.

    The distribution is the one that is named or around, else the one that the workspace was made from. Takes no lock and
    writes nothing in the workspace. Edits are found by git's stat cache, as `git status` does; `verify --workspace`
    reads every byte. Exit code 1 when something is not as it should be.

    scripts/build_image.sh gives the lines of --labels to the image that it builds. `patchctl.lock` is one sha256 over the
    lock files of the stacks whose trees are here; `patchctl.tree.UPSTREAM` is the form of the source and git's id of the
    patched tree; `patchctl.skipped` names the profile's upstreams that have no tree here, `patchctl.without` the features
    that a tree lacks: left out by someone, or not to be had. Refused where something is not as it should be.

    \b
    Examples:
      patchctl status
      patchctl status --workspace workspace --python .venv/bin/python
    """
    from patchctl.manifest.distribution import Distribution
    from patchctl.report.trees import status_text
    from patchctl.workspace.status import labels, read_status

    workspace = workspace.absolute()
    root = app.root_of(workspace)
    if root is None and (python or as_labels):
        needed = message("--python needs a distribution: it says where the packages are")
        needed = message("--labels needs a distribution: the lock is there") if as_labels else needed
        raise WrongUse(needed, hint=message("name it with --root DIR"))
    dist = Distribution.load(root, app.cache_folder) if root else None
    status = read_status(workspace, dist, python)
    if as_labels and dist is not None:
        status = replace(status, labels=labels(status, dist))
    app.emit("status", status, lambda style: status_text(status, style), as_json)
    return DONE if status.clean else FINDINGS
