"""patchctl labels."""

from __future__ import annotations

from pathlib import Path

import click

from patchctl.cli.app import App, json_option, workspace_option
from patchctl.errors import DONE, WrongUse


@click.command("labels")
@workspace_option
@json_option("patchctl.report.trees:LabelsOutput")
@click.pass_obj
def command(app: App, workspace: Path, as_json: bool) -> int:
    """Print what a workspace holds as labels of an image, NAME=VALUE: profile, digest of the locks, and trees.

    scripts/build_image.sh gives them to the image that it builds. `patchctl.lock` is one sha256 over the lock files of
    the stacks whose trees are here; `patchctl.tree.UPSTREAM` is the form of the source and git's id of the patched tree;
    `patchctl.skipped` names the profile's upstreams that have no tree here, `patchctl.without` the features that a tree
    lacks: left out by somebody, or not to be had. Refused where `patchctl status` has findings.
    """
    from patchctl.manifest.distribution import Distribution
    from patchctl.report.trees import LabelsOutput
    from patchctl.workspace.status import labels, read_status

    workspace = workspace.absolute()
    root = app.root_of(workspace)
    if root is None:
        raise WrongUse("labels need the distribution: the lock is there", hint="name it with --root DIR")
    dist = Distribution.load(root, app.cache_folder)
    found = labels(read_status(workspace, dist, None), dist)
    lines = [f"{name}={value}" for name, value in found.items()]
    app.emit("labels", LabelsOutput(workspace, found), lambda style: lines, as_json)
    return DONE
