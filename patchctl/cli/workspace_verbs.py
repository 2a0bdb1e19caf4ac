"""apply, revert, repair and status: the verbs of a workspace; identify, blame and bisect: which pin a folder is, whose a line is, and
which patch breaks a command."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from patchctl.cli.app import (
    App,
    flag,
    json_option,
    optional_workspace,
    profile_option,
    split_pair,
    verbose_option,
    workspace_option,
)
from patchctl.cli.sources import Sources, source_options, source_or_bundle_options
from patchctl.errors import DONE, FINDINGS, BadManifest, WrongUse
from patchctl.language import joined, message

if TYPE_CHECKING:
    from patchctl.blame.bisect import BisectRun
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
@flag(
    "--on-this-base",
    "Take a tree that is patched in place as it is, though it is not the pin's, if no patch changes a file that"
    " differs; status, labels and verify name the files.",
)
@click.option(
    "--without", "without", multiple=True, metavar="FEATURE[@UPSTREAM]", help="Leave a feature out. Repeatable."
)
@flag(
    "--skip-unavailable",
    "Go on without upstreams and patches whose source cannot be had, as long as one upstream can be; they are listed"
    " here, in the state and by verify.",
)
@flag("--stash", "Keep local edits on a branch of their tree instead of stopping at them.")
@flag("--dry-run", "Build and prove everything, and write nothing.")
@json_option("patchctl.workspace.apply:ApplyOutput")
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
    from patchctl.manifest.distribution import check_outside
    from patchctl.report.trees import plan_text
    from patchctl.stack.plan import make_plan, select
    from patchctl.workspace.apply import apply_output, apply_plan, preview
    from patchctl.workspace.current import current_state

    dist = sources.distribution
    workspace = workspace.absolute()
    check_outside(dist.root, workspace)
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
@flag("--stash", "Keep local edits on a branch of their tree instead of stopping at them.")
@json_option("patchctl.workspace.apply:RevertOutput")
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
    from patchctl.report.trees import revert_text
    from patchctl.workspace.apply import revert, revert_output

    outcome = revert(workspace.absolute(), stash=stash)
    app.emit("revert", revert_output(outcome, workspace.absolute()), lambda style: revert_text(outcome, style), as_json)


@click.command("repair")
@workspace_option
@flag("--dry-run", "Say what is wrong, and write nothing.")
@json_option("patchctl.workspace.repair:RepairOutput")
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
    from patchctl.report.trees import repair_text
    from patchctl.workspace.apply import writing
    from patchctl.workspace.repair import RepairOutput, preview_repair, repair

    workspace = workspace.absolute()
    with writing(workspace):
        result = preview_repair(workspace) if dry_run else repair(workspace, app.cache_folder)

    app.emit("repair", RepairOutput(result, dry_run), lambda s: repair_text(result, s, dry_run=dry_run), as_json)


@click.command("status")
@workspace_option
@click.option("--python", metavar="PY", help="Also say which tree this interpreter really imports.")
@flag("--labels", "Print what it holds as labels of an image, NAME=VALUE.", "as_labels")
@verbose_option("the patches of each tree, every edited file, and the places tried for sources")
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
    app.show_root(root)
    app.emit("status", status, lambda style: status_text(status, style, python, verbose=verbose), as_json)
    return DONE if status.clean else FINDINGS


@click.command("identify")
@click.argument(
    "folder", metavar="DIR", type=click.Path(path_type=Path, exists=True, file_okay=False, resolve_path=True)
)
@json_option("patchctl.identify.match:Identification")
@click.pass_obj
def identify_command(app: App, folder: Path, as_json: bool) -> int:
    """Tell which pin a folder of sources is, by its content.

    DIR is a checkout, an unpacked source distribution, a package's folder, a part of one, or a site-packages folder.
    Files are compared by git's blob ids with the lists in manifests/trees; version strings are not looked at. Files
    that the distribution's patches changed are recognised. Reads only; exit code 1 when it is not exactly a pin.

    \b
    Examples:
      patchctl identify /vllm-workspace/vllm
      patchctl identify workspace/verl --json
    """
    from patchctl.identify.match import identify
    from patchctl.report.trees import identify_text
    from patchctl.stack.tree_lists import known_trees

    known = known_trees(app.distribution)
    if not known:
        hint = "`patchctl lock` writes them"
        raise BadManifest("the distribution has no lists of its pins' files", where="manifests/trees", hint=hint)
    found = identify(folder, known)
    app.emit("identify", found, lambda style: identify_text(found, style), as_json)
    return DONE if found.exact else FINDINGS


@click.command("blame")
@click.argument("place", required=False, metavar="[FILE:LINE]")
@click.option(
    "--traceback",
    metavar="FILE",
    help="Every line of the Python tracebacks in FILE, or of dumps by faulthandler, pystack or py-spy; - for standard input.",
)
@optional_workspace(
    "A workspace whose trees count, wherever they lie; one around the file is found. Repeatable.",
    "workspaces",
    multiple=True,
    envvar="PATCHCTL_WORKSPACE",
)
@source_options
@json_option("patchctl.report.proving:BlameOutput")
@click.pass_obj
def blame_command(
    app: App, place: str | None, traceback: str | None, workspaces: tuple[Path, ...], sources: Sources, as_json: bool
) -> int:
    """Tell whose a line is, upstream's or a patch's: with the patch's switch and page.

    Of a workspace, of packages wherever they are installed, and of the paths of an image or a container: a file is told by
    its content, and one that is not on this machine by the lines that the traceback shows of it, for which its source has to
    be in the cache or a mirror. Reads only, and asks no network. Exit code 1 when no line belongs to a known upstream, or of one
    nobody can tell whose it is.

    \b
    Examples:
      patchctl blame workspace/megatron-lm/megatron/core/parallel_state.py:64
      patchctl blame --traceback worker.log
    """
    from patchctl.blame.blame import Blame, parse_place, places_in
    from patchctl.report.proving import BlameOutput, blame_text

    if (place is None) == (traceback is None):
        raise WrongUse("name one line as FILE:LINE, or a --traceback")
    if traceback is not None:
        places = places_in(_traceback_of(traceback))
        if not places:
            raise WrongUse(
                "there is no Python traceback in it", hint='lines as File "x.py", line 3, in f are looked for'
            )
    else:
        places = [parse_place(place or "")]
    blame = Blame(app.distribution, [w.absolute() for w in workspaces], sources.options())
    found = blame.all(places)
    app.emit("blame", BlameOutput(found), lambda style: blame_text(found, style), as_json)
    ours = [one for one in found if one.upstream is not None]
    return DONE if ours and all(one.owner is not None for one in ours) else FINDINGS


def _traceback_of(name: str) -> str:
    from patchctl.os_errors import named_file

    try:
        data = sys.stdin.buffer.read() if name == "-" else named_file(Path(name))
    except (OSError, ValueError) as error:
        raise WrongUse(f"{name} cannot be read: {error.strerror if isinstance(error, OSError) else error}") from error
    return data.decode("utf-8", "replace")


@click.command("bisect", context_settings={"ignore_unknown_options": True})
@profile_option
@click.option("--without", multiple=True, metavar="FEATURE", help="Leave this feature out of every run. Repeatable.")
@source_options
@json_option("patchctl.report.proving:BisectOutput")
@click.argument("cmd", nargs=-1, required=True, metavar="-- CMD...", type=click.UNPROCESSED)
@click.pass_obj
def bisect_command(
    app: App, profile: str, without: tuple[str, ...], sources: Sources, as_json: bool, cmd: tuple[str, ...]
) -> int:
    """Find the patch of a profile that breaks a command, by halving over the patches of all its stacks.

    CMD runs in a temporary workspace (the current folder; its name is in PATCHCTL_WORKSPACE too), with the patched trees first
    where Python looks: 0 is good, 125 cannot be told, 126 and 127 end the search, all else is bad. It runs with all patches, with
    none, and then with about log2 of them; no run has a patch without what that requires. What CMD says goes to standard error. No
    workspace of yours is touched.

    Exit code 1 when the command succeeds with all, or fails without any patch.

    \b
    Examples:
      patchctl bisect --profile qwen3-8b -- python -m pytest -x test_rollout.py
      patchctl bisect --profile qwen3-8b --without sam_proposer -- python train.py
    """
    from patchctl.blame.bisect import Bisection
    from patchctl.report.proving import bisect_output, bisect_text, step_text

    def tell(step: BisectRun, units: int) -> None:
        print(step_text(step, units), file=sys.stderr, flush=True)

    dist = app.distribution
    chosen = dist.profile(profile)
    search = Bisection(dist, chosen, without, sources.options(), app.progress(as_json), tell)
    found = search.search(cmd)
    app.emit("bisect", bisect_output(found, chosen), lambda style: bisect_text(found, style), as_json)
    return DONE if found.broken else FINDINGS
