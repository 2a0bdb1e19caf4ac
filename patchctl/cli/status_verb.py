"""patchctl status."""

from __future__ import annotations

from pathlib import Path

import click

from patchctl.cli.app import App, json_option, workspace_option
from patchctl.errors import DONE, FINDINGS, WrongUse


@click.command("status")
@workspace_option
@click.option("--python", metavar="PY", help="Also say which tree this interpreter really imports.")
@json_option
@click.pass_obj
def command(app: App, workspace: Path, python: str | None, as_json: bool) -> int:
    """Say what a workspace holds: profile, form, pin, patches, edits, and whether it equals the lock.

    Takes no lock and writes nothing. Edits are found by git's stat cache, as `git status` does; `verify --workspace`
    reads every byte. Exit code 1 when something is not as it should be.
    """
    from patchctl.report.trees import status_text
    from patchctl.workspace.status import read_status

    try:
        dist = app.distribution
    except WrongUse:
        if app.root is not None or python:
            raise
        dist = None  # a workspace may be looked at where there is no distribution
    status = read_status(workspace.absolute(), dist, python)
    app.emit("status", status.as_json(), lambda style: status_text(status, style), as_json)
    return DONE if status.clean else FINDINGS
