"""apply, revert, repair and status: the verbs of a workspace."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from patchctl.cli.app import App, json_option, profile_option, split_pair, verbose_option, workspace_option
from patchctl.cli.sources import Sources, source_or_bundle_options
from patchctl.errors import DONE, FINDINGS, WrongUse
from patchctl.language import joined, message
from patchctl.terminal.text import Style

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
def apply_command(
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


@click.command("revert")
@workspace_option
@click.option("--stash", is_flag=True, help="Keep local edits on a branch of their tree instead of stopping at them.")
@json_option("patchctl.report.trees:RevertOutput")
@click.pass_obj
def revert_command(app: App, workspace: Path, stash: bool, as_json: bool) -> None:
    """Take a workspace back to the unpatched base, byte for byte.

    Needs no network, no cache and no distribution: the workspace holds everything. Checkouts that were patched with
    --in-place get their files back and are then forgotten.

    \b
    Examples:
      patchctl revert
      patchctl revert --workspace workspace --stash
    """
    from patchctl.report.trees import revert_output
    from patchctl.workspace.apply import revert

    outcome = revert(workspace.absolute(), stash=stash)

    def text(style: Style) -> Iterable[str]:
        if outcome.finished:
            yield style.note(f"finished an interrupted {outcome.finished} first")
        if outcome.undone:
            yield style.note(f"took an interrupted {outcome.undone} back first: its objects were damaged")
        for name in outcome.changed:
            tree = outcome.state.trees.get(name)
            yield f"{name:<12} {style.good('back at its base')} {tree.base_commit[:12] if tree else ''}".rstrip()
        if not outcome.changed:
            yield "every tree is at its base already"
        yield from (f"{n:<12} edits kept on branch {branch}" for n, branch in outcome.stashed.items())

    app.emit("revert", revert_output(outcome, workspace.absolute()), text, as_json)


@click.command("repair")
@workspace_option
@click.option("--dry-run", is_flag=True, help="Say what is wrong, and write nothing.")
@json_option("patchctl.report.trees:RepairOutput")
@click.pass_obj
def repair_command(app: App, workspace: Path, dry_run: bool, as_json: bool) -> None:
    """Make a clean base of a workspace that was interrupted or damaged, and lose nothing.

    Says what it sees: an interrupted run, a journal or state that cannot be read, a repository that is damaged or gone, locks
    of a git that is dead. Files of yours go to a new folder `repair-N` in the workspace, which it names; staged content and
    commits go to branches of the tree. A tree that neither the workspace nor the cache can give goes there whole; a checkout
    that was patched with --in-place then stays as it is. A healthy workspace stays as it is.

    \b
    Examples:
      patchctl repair --dry-run
      patchctl repair --workspace workspace
    """
    from patchctl.report.trees import RepairOutput, repair_text
    from patchctl.workspace.apply import writing
    from patchctl.workspace.repair import preview_repair, repair

    workspace = workspace.absolute()
    with writing(workspace):
        result = preview_repair(workspace) if dry_run else repair(workspace, app.cache_folder)

    app.emit("repair", RepairOutput(result, dry_run), lambda s: repair_text(result, s, dry_run=dry_run), as_json)


@click.command("status")
@workspace_option
@click.option("--python", metavar="PY", help="Also say which tree this interpreter really imports.")
@click.option("--labels", "as_labels", is_flag=True, help="Print what it holds as labels of an image, NAME=VALUE.")
@verbose_option("the patches of each tree, and every edited file")
@json_option("patchctl.workspace.status:Status")
@click.pass_obj
def status_command(app: App, workspace: Path, python: str | None, as_labels: bool, verbose: bool, as_json: bool) -> int:
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
    app.emit("status", status, lambda style: status_text(status, style, verbose=verbose), as_json)
    return DONE if status.clean else FINDINGS
