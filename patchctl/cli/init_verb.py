"""patchctl init."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path

import click

from patchctl.cli.app import App
from patchctl.cli.sources import Sources, source_options
from patchctl.errors import WrongUse


@click.command("init")
@click.argument("name", metavar="[NAME", default="")
@click.argument("wanted", metavar="VERSION|REF]", default="")
@click.option("--git", multiple=True, metavar="URL", help="A repository of the upstream. Repeatable.")
@click.option("--sdist", metavar="PROJECT", help="Its name on the package index.")
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    metavar="DIR",
    help="Where the distribution begins [default: this folder].",
)
@source_options
@click.pass_obj
def command(
    app: App, name: str, wanted: str, git: tuple[str, ...], sdist: str | None, folder: Path, sources: Sources
) -> None:
    """Begin a distribution of your own: one upstream at one revision, ready for its first patch.

    Writes manifests with the first stack and its lock, a profile of the upstream's name, a README, what the tests of
    patches need (conftest.py, tests/behaviour/harness.py), and a workflow for CI. All is written, or nothing.
    docs/your-own-distribution.md goes from there to a proven patch. On a terminal it asks for what is not given.

    \b
    Examples:
      patchctl init humanize 4.12.3 --sdist humanize --dir humanize-patches
      patchctl init slime v0.3.1 --git https://github.com/THUDM/slime.git
    """
    from patchctl.atomic import filling
    from patchctl.cli.lock_verb import lock_stack
    from patchctl.manifest.distribution import Distribution
    from patchctl.manifest.types import Upstream
    from patchctl.pin.pin import UNKNOWN, begin_distribution, check_place, declare

    if sys.stdin.isatty():
        name = name or click.prompt("Name of the upstream", err=True)
        if not (git or sdist):
            url = click.prompt("Its git repository, or nothing", default="", show_default=False, err=True)
            git = (url,) if url else ()
            sdist = click.prompt("Its name on the package index, or nothing", default="", show_default=False, err=True)
        wanted = wanted or click.prompt("Version, tag or commit", err=True)
    if not (name and wanted):
        raise WrongUse("which upstream, and which version of it?", hint="patchctl init NAME VERSION --git URL")
    if not (git or sdist):
        raise WrongUse("where is the upstream?", hint="name its repository with --git URL, or --sdist PROJECT, or both")
    root = folder.absolute()
    check_place(root, name, git)
    progress = app.progress(as_json=False)
    with filling(root, last="manifests") as staged:
        app.distribution = declare(staged, name, Upstream(name, UNKNOWN, [*git], sdist or None))
        options = (sources if git else replace(sources, source="sdist")).options()
        stack, notes = begin_distribution(app.distribution, name, wanted, options, progress)
        lock_stack(Distribution.load(staged), stack, options, progress, check=False)
        written = sorted(path.relative_to(staged).as_posix() for path in staged.rglob("*") if path.is_file())
    progress.finish()
    for path in written:
        print(f"written  {folder / path}")
    for note in notes:
        print(f"note     {note}")
    print(
        "next: "
        + (f"cd {shlex.quote(str(folder))} && " if folder != Path() else "")
        + f"patchctl new FEATURE --stack {name}"
    )
