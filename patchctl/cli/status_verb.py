"""patchctl status."""

from __future__ import annotations

from pathlib import Path

import click

from patchctl.cli.app import App, json_option, workspace_option
from patchctl.errors import DONE, FINDINGS, WrongUse


@click.command("status")
@workspace_option
@click.option("--python", metavar="PY", help="Also say which tree this interpreter really imports.")
@json_option("patchctl.workspace.status:Status")
@click.pass_obj
def command(app: App, workspace: Path, python: str | None, as_json: bool) -> int:
    """Say what a workspace holds: profile, form, pin, patches, edits, and whether it equals the lock.

    The distribution is the one that is named or around, else the one that the workspace was made from. Takes no lock and
    writes nothing in the workspace. Edits are found by git's stat cache, as `git status` does; `verify --workspace`
    reads every byte. Exit code 1 when something is not as it should be.
    """
    from patchctl.manifest.distribution import Distribution
    from patchctl.report.trees import status_text
    from patchctl.workspace.status import read_status

    workspace = workspace.absolute()
    root = app.root_of(workspace)
    if root is None and python:
        raise WrongUse("--python needs a distribution: it says where the packages are", hint="name it with --root DIR")
    dist = Distribution.load(root, app.cache_folder) if root else None
    status = read_status(workspace, dist, python)
    app.emit("status", status, lambda style: status_text(status, style), as_json)
    return DONE if status.clean else FINDINGS
