"""patchctl apply."""

from __future__ import annotations

from pathlib import Path

import click

from patchctl.cli.app import App, json_option, profile_option, source_options, split_pair, workspace_option
from patchctl.cli.bundle_options import bundle_options, take_bundle, with_bundle
from patchctl.errors import WrongUse


@click.command("apply")
@profile_option
@workspace_option
@source_options
@bundle_options
@click.option("--into", "into", multiple=True, metavar="NAME=DIR",
              help="Patch this existing checkout or installed package in place of a tree in the workspace. Repeatable.")  # fmt: skip
@click.option(
    "--without", "without", multiple=True, metavar="FEATURE[@UPSTREAM]", help="Leave a feature out. Repeatable."
)
@click.option("--skip-unavailable", is_flag=True,
              help="Go on without upstreams and patches whose source cannot be had, as long as one upstream can be; they are listed"
                   " here, in the state and by verify.")  # fmt: skip
@click.option("--stash", is_flag=True, help="Keep local edits on a branch of their tree instead of stopping at them.")
@click.option("--dry-run", is_flag=True, help="Build and prove everything, and write nothing.")
@json_option
@click.pass_obj
def command(
    app: App,
    profile: str,
    workspace: Path,
    source: str,
    mirrors: tuple[str, ...],
    offline: bool,
    bundle: Path | None,
    bundle_sha256: str | None,
    into: tuple[str, ...],
    without: tuple[str, ...],
    skip_unavailable: bool,
    stash: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Build every stack of a profile and put the patched trees into a workspace.

    All stacks are built and compared with the lock before the first file is written; then all trees are changed, or
    none. Applying again changes nothing; applying another profile switches. A run that was killed is finished by the
    next one.

    With --bundle FILE nothing else is needed: no distribution, no cache and no network.
    """
    from patchctl.report.trees import plan_json, plan_text
    from patchctl.stack.plan import make_plan, select
    from patchctl.workspace.apply import apply_plan, preview

    opened = take_bundle(app, bundle, bundle_sha256, as_json=as_json)
    dist = app.distribution
    folders = {name: Path(folder) for name, folder in (split_pair(i, "--into") for i in into)}
    chosen = dist.profile(profile)
    for name in folders:
        if name not in chosen.stacks:
            raise WrongUse(
                f"--into {name}: the profile {profile} has no stack for it", hint=f"it has {', '.join(chosen.stacks)}"
            )
    own = [f"{name}={folder.absolute()}" for name, folder in folders.items() if (folder / ".git").exists()]
    options = with_bundle(app.source_options(source, [*mirrors, *own], offline), opened)
    progress = app.progress(as_json)
    selection = select(dist, chosen, without)
    plan = make_plan(dist, selection, options, progress, without=without, skip_unavailable=skip_unavailable)
    progress.finish()
    workspace = workspace.absolute()
    if dry_run:
        outcome = preview(workspace, plan, dist.root, folders, stash=stash)
    else:
        outcome = apply_plan(workspace, plan, dist.root, folders, stash=stash)
    data = plan_json(plan, outcome, workspace, dry_run=dry_run)
    app.emit("apply", data, lambda style: plan_text(plan, outcome, workspace, style, dry_run=dry_run), as_json)
