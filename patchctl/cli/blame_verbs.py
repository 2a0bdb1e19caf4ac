"""identify, blame and bisect: which pin a folder is, whose a line is, and which patch breaks a command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from patchctl.cli.app import App, json_option, profile_option
from patchctl.cli.sources import Sources, source_options
from patchctl.errors import DONE, FINDINGS, BadManifest, WrongUse
from patchctl.given import named_file

if TYPE_CHECKING:
    from patchctl.blame.bisect import BisectRun


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
@click.option("--traceback", metavar="FILE", help="Every line of the Python tracebacks in FILE; - for standard input.")
@click.option(
    "--workspace",
    "-w",
    "workspaces",
    multiple=True,
    envvar="PATCHCTL_WORKSPACE",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False, readable=False),
    help="A workspace whose trees count, wherever they lie; one around the file is found. Repeatable.",
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
    where Python looks: 0 is good, 125 cannot be told, all else is bad. It runs with all patches, with none, and then with about
    log2 of them; no run has a patch without what that requires. What CMD says goes to standard error. No workspace of
    yours is touched.

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
