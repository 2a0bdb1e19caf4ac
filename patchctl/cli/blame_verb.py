"""patchctl blame."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from patchctl.cli.app import App, json_option
from patchctl.cli.sources import Sources, source_options
from patchctl.errors import DONE, FINDINGS, WrongUse
from patchctl.given import named_file


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
def command(
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
        places = places_in(_text(traceback))
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


def _text(name: str) -> str:
    try:
        data = sys.stdin.buffer.read() if name == "-" else named_file(Path(name))
    except (OSError, ValueError) as error:
        raise WrongUse(f"{name} cannot be read: {error.strerror if isinstance(error, OSError) else error}") from error
    return data.decode("utf-8", "replace")
