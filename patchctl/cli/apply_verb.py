"""patchctl apply."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from patchctl.cli.app import App, json_option, profile_option, split_pair, workspace_option
from patchctl.cli.sources import Sources, source_or_bundle_options
from patchctl.errors import WrongUse
from patchctl.language.messages import joined, message

if TYPE_CHECKING:
    from patchctl.manifest.distribution import Distribution
    from patchctl.manifest.types import Profile


@click.command("apply")
@profile_option
@workspace_option
@source_or_bundle_options
@click.option(
    "--in-place",
    multiple=True,
    metavar="NAME=DIR",
    help="Patch this checkout, site-packages or package where it is, not a tree in the workspace. Repeatable.",
)
@click.option(
    "--site-packages",
    metavar="PY",
    help="The same for every package of the profile that this interpreter imports, wherever it finds them.",
)
@click.option(
    "--on-this-base",
    is_flag=True,
    help="Take a tree that is patched in place as it is, though it is not the pin's, if no patch changes a file that"
    " differs; status, labels and verify name the files.",
)
@click.option(
    "--without", "without", multiple=True, metavar="FEATURE[@UPSTREAM]", help="Leave a feature out. Repeatable."
)
@click.option(
    "--skip-unavailable",
    is_flag=True,
    help="Go on without upstreams and patches whose source cannot be had, as long as one upstream can be; they are listed"
    " here, in the state and by verify.",
)
@click.option("--stash", is_flag=True, help="Keep local edits on a branch of their tree instead of stopping at them.")
@click.option("--dry-run", is_flag=True, help="Build and prove everything, and write nothing.")
@json_option("patchctl.report.trees:ApplyOutput")
@click.pass_obj
def command(
    app: App,
    profile: str,
    workspace: Path,
    sources: Sources,
    in_place: tuple[str, ...],
    site_packages: str | None,
    on_this_base: bool,
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

    Packages that pip or uv installed are patched in site-packages with --site-packages PY (or --in-place NAME=DIR): their
    RECORD stays true, and patches of files that the package does not have are left out and listed.

    With --bundle FILE nothing else is needed: no distribution, no cache and no network.

    \b
    Examples:
      patchctl apply --profile qwen3-235b
      patchctl apply --profile qwen3-32b --in-place vllm=/vllm-workspace/vllm
    """
    from patchctl.report.trees import apply_output, plan_text
    from patchctl.stack.plan import make_plan, select
    from patchctl.workspace.apply import apply_plan, preview
    from patchctl.workspace.current import current_state

    dist = sources.distribution
    workspace = workspace.absolute()
    if on_this_base and not (in_place or site_packages):
        raise WrongUse(
            message("--on-this-base is for trees that are patched in place"),
            hint=message("name them with --in-place NAME=DIR"),
        )
    folders = _folders(dist, dist.profile(profile), in_place, site_packages, workspace)
    own = [f"{name}={folder.absolute()}" for name, folder in folders.items() if (folder / ".git").exists()]
    options = sources.options(own)
    progress = app.progress(as_json)
    selection = select(dist, dist.profile(profile), without, app.cache_folder)
    plan = make_plan(
        dist,
        selection,
        options,
        progress,
        without=without,
        skip_unavailable=skip_unavailable,
        current=current_state(workspace, dist, folders, options.cache if on_this_base else None),
    )
    progress.finish()
    if dry_run:
        outcome = preview(workspace, plan, dist.root, folders, stash=stash)
    else:
        outcome = apply_plan(workspace, plan, dist.root, folders, stash=stash)
    data = apply_output(plan, outcome, workspace, dry_run=dry_run)
    app.emit("apply", data, lambda style: plan_text(plan, outcome, workspace, style, dry_run=dry_run), as_json)


def _folders(
    dist: Distribution, profile: Profile, in_place: tuple[str, ...], python: str | None, workspace: Path
) -> dict[str, Path]:
    """The folders to patch in place, by upstream: those of --in-place, and those that the interpreter of --site-packages imports."""
    from patchctl.workspace.current import imported_folders, top_of

    folders = {}
    for name, folder in (split_pair(i, "--in-place") for i in in_place):
        if name not in profile.stacks:
            what = message(
                "--in-place {name}: the profile {profile} has no stack for it", name=name, profile=profile.name
            )
            raise WrongUse(what, hint=message("it has {names}", names=joined(profile.stacks)))
        folders[name] = top_of(Path(folder), dist.upstream(name))
    if python is not None:
        from patchctl.install.install import interpreter

        rest = [name for name in profile.stacks if name not in folders and dist.upstream(name).packages]
        folders |= imported_folders(interpreter(python), workspace, dist, rest)
    return folders
