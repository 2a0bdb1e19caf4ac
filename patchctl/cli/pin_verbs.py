"""init, pin, outdated and bump: which revisions a distribution is for."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from patchctl.cli.app import (
    App,
    complete_release,
    complete_upstream,
    find_stack,
    flag,
    folder_option,
    json_option,
    release_option,
)
from patchctl.cli.sources import Sources, source_options
from patchctl.errors import DONE, FINDINGS, SourceUnavailable, WrongUse

if TYPE_CHECKING:
    from patchctl.manifest.distribution import Distribution
    from patchctl.manifest.types import Stack


@click.command("init")
@click.argument("name", metavar="[NAME", default="")
@click.argument("wanted", metavar="VERSION|REF]", default="")
@click.option("--git", multiple=True, metavar="URL", help="A repository of the upstream. Repeatable.")
@click.option("--sdist", metavar="PROJECT", help="Its name on the package index.")
@folder_option("Where the distribution begins [default: this folder].", default=Path())
@source_options
@click.pass_obj
def init_command(
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
    from patchctl.manifest.distribution import Distribution
    from patchctl.manifest.types import Upstream
    from patchctl.pin.pin import UNKNOWN, begin_distribution, check_place, declare
    from patchctl.stack.locking import lock_stack

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
    check_place(root, name, git, sdist)
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
    there = f"cd {shlex.quote(str(folder))} && " if folder != Path() else ""
    print(f"next: {there}patchctl new FEATURE --stack {name}")


@click.command("pin")
@click.argument("upstream", metavar="UPSTREAM", shell_complete=complete_upstream)
@click.argument("wanted", metavar="VERSION|REF")
@click.option(
    "--from", "origin", metavar="STACK", help="The stack that it follows [default: the newest that is not newer]."
)
@click.option("--name", metavar="NAME", help="The new stack's name [default: the tag or the branch].")
@click.option("--commit", metavar="ID", help="The commit, where no repository can be had that tells it.")
@flag("--dry-run", "Print the manifest instead of writing it.")
@source_options
@json_option("patchctl.report.stacks:PinOutput")
@click.pass_obj
def pin_command(
    app: App,
    upstream: str,
    wanted: str,
    origin: str | None,
    name: str | None,
    commit: str | None,
    dry_run: bool,
    sources: Sources,
    as_json: bool,
) -> None:
    """Write a new stack of an upstream beside the old one: the pin, without patches yet.

    Commit, tree and tag come from the repository, the digest of the source distribution from the package index. With
    --source sdist no repository is asked, and that digest alone is the pin, unless --commit says one. The files
    that upstream's build generates are taken over from the stack before, with the new version in them, and are refused where
    the new revision expects them no more. What upstream's own files say that it runs on is printed as a proposal: no profile
    is changed. Modules that the new revision imports and nothing provides are named. `patchctl rebase` brings the patches.

    \b
    Examples:
      patchctl pin verl v0.6.1 --dry-run
      patchctl pin vllm-ascend 0.23.0.post1 --source sdist
    """
    import re

    from patchctl.pin.pin import find_pin, newest, write_pin
    from patchctl.report.stacks import pin_output, pin_text

    if commit is not None and not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise WrongUse(f"--commit {commit!r} is no full commit id", hint="40 lower-case hexadecimal digits")
    dist = app.distribution
    like = find_stack(dist, f"{upstream}/{origin}") if origin else newest(dist, upstream, wanted)
    progress = app.progress(as_json)
    try:
        pinned = find_pin(dist, like, wanted, sources.options(), progress, name=name, commit=commit)
    finally:
        progress.finish()
    if not dry_run:
        write_pin(pinned)
    data = pin_output(pinned, written=not dry_run)
    app.emit("pin", data, lambda style: pin_text(pinned, dist.root, written=not dry_run), as_json)


@click.command("outdated")
@click.argument("stacks", nargs=-1, metavar="[UPSTREAM[/STACK]]...", shell_complete=complete_upstream)
@flag("--no-drift", "Name what is newer, and try no patch on it: nothing is downloaded.")
@flag("--skip-unavailable", "End as the other upstreams do if one of them cannot be asked.")
@release_option
@source_options
@json_option("patchctl.report.drift:OutdatedOutput")
@click.pass_obj
def outdated_command(
    app: App,
    stacks: tuple[str, ...],
    no_drift: bool,
    skip_unavailable: bool,
    sources: Sources,
    as_json: bool,
) -> int:
    """Say which upstreams have something newer than the pins, and what moving there would take.

    A line for the newest release, the newest candidate after it and the head of the branch that is followed, with one
    word: exact (every patch applies as it is), moved (all arrive), conflicts (someone has to work) or taken upstream.
    Indexes are asked for versions that run on the release's Python. Then the revisions that the pinned files name of
    other upstreams, as in an image's Dockerfile.

    Exit code 1 if something is newer, 0 if not, 3 if an upstream cannot be asked.

    \b
    Examples:
      patchctl outdated                          every upstream of the release
      patchctl outdated verl --no-drift --json   names alone, for a job
    """
    from patchctl.drift.drift import Drifting
    from patchctl.drift.outdated import outdated
    from patchctl.report.drift import OutdatedOutput, outdated_text

    dist = app.distribution
    chosen = list({s.upstream: s for s in [find_stack(dist, name) for name in stacks] or _of_release(dist)}.values())
    fitting = [dist.release(dist.named_release)] if dist.named_release else dist.releases.values()
    release = next((r for r in fitting if all(r.stacks.get(s.upstream) == s.name for s in chosen)), None)
    python = release.python if release else None
    drifting = Drifting(dist, sources.options(), app.progress(as_json))
    found = outdated(drifting, chosen, python, drift=not no_drift)
    data = OutdatedOutput(release.name if release else None, python, found, release.stays if release else {})
    app.emit("outdated", data, lambda style: outdated_text(data, style), as_json)
    if any(one.unavailable for one in found) and not skip_unavailable:
        return SourceUnavailable.code
    return FINDINGS if any(one.newer for one in found) else DONE


def _of_release(dist: Distribution) -> list[Stack]:
    """Every upstream's stack on the release in force."""
    from patchctl.catalog.chosen_release import stack_taken

    known = {s.upstream for s in dist.stacks.values() if dist.of_named_release(s)}
    return [stack_taken(dist, upstream, lambda line: None) for upstream in dist.upstreams if upstream in known]


@click.command("bump")
@click.argument("release", required=False, shell_complete=complete_release)
@click.option("--to", metavar="NEW", help="The new release [default: the next point release, YEAR.MONTH.N].")
@click.option(
    "--only",
    multiple=True,
    metavar="UPSTREAM[@REVISION]",
    shell_complete=complete_upstream,
    help="Move this upstream, to its newest release or to a revision, and no other that is not named. Repeatable.",
)
@click.option(
    "--branch",
    is_flag=False,
    flag_value="",
    metavar="[NAME]",
    help="Work on a new branch of the distribution's git and commit there, at stops and at the end [NAME: bump/NEW].",
)
@flag("--dry-run", "Say what would move, and what each patch would take. Writes nothing.")
@flag("--skip-unavailable", "Leave an upstream as it is whose sources cannot be had, and say so.")
@flag("--no-prove", "Run no proofs at the end; may take hours otherwise.")
@click.option("--continue", "action", flag_value="continue", help="Go on: a patch is resolved, or the run was killed.")
@click.option(
    "--abort",
    "action",
    flag_value="abort",
    help="Forget the bump. Stacks that have arrived stay: with --branch on that, and the one before is checked out.",
)
@source_options
@json_option("patchctl.report.bump:BumpOutput")
@click.pass_obj
def bump_command(
    app: App,
    release: str | None,
    to: str | None,
    only: tuple[str, ...],
    branch: str | None,
    dry_run: bool,
    no_prove: bool,
    skip_unavailable: bool,
    action: str | None,
    sources: Sources,
    as_json: bool,
) -> int:
    """Make a new release from RELEASE, or from the newest: move stacks to newer revisions, lock and prove them, write it.

    Without --only, the upstreams whose files name others (vllm-ascend names a vllm) go to their newest release, and the
    others to the newer releases that they name. Each move is a rebase (docs/rebase.md). Where a patch needs a person,
    the run stops with exit code 4: resolve it, `git add`, then --continue; `patchctl rebase --skip` leaves a patch out.
    A killed run is continued the same way. When all have arrived, the release's manifest is written and proofs are run.

    Exit code 0 if every patch of the new stacks is proven, 20 if someone has to work, 4 at a stop.

    \b
    Examples:
      patchctl bump --dry-run
      patchctl bump RELEASE --to NEW --only vllm-ascend
      patchctl bump --continue
    """
    from patchctl.cli.bump_run import begin, end_or_go_on

    if action is None:
        flags = {"dry_run": dry_run, "prove": not no_prove, "skip_unavailable": skip_unavailable}
        return begin(app, release, to, only, branch, sources, **flags, as_json=as_json)
    if dry_run:
        raise WrongUse(f"--dry-run writes nothing, and --{action} does", hint="leave one of them out")
    named = bool(release or to or only) or branch is not None
    return end_or_go_on(app, action, named, sources, prove=not no_prove, as_json=as_json)
