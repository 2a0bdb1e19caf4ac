"""patchctl pin."""

from __future__ import annotations

import click

from patchctl.cli.app import App, complete_upstream, find_stack, json_option
from patchctl.cli.sources import Sources, source_options
from patchctl.errors import WrongUse


@click.command("pin")
@click.argument("upstream", metavar="UPSTREAM", shell_complete=complete_upstream)
@click.argument("wanted", metavar="VERSION|REF")
@click.option(
    "--from", "origin", metavar="STACK", help="The stack that it follows [default: the newest that is not newer]."
)
@click.option("--name", metavar="NAME", help="The new stack's name [default: the tag or the branch].")
@click.option("--commit", metavar="ID", help="The commit, where no repository can be had that tells it.")
@click.option("--dry-run", is_flag=True, help="Print the manifest instead of writing it.")
@source_options
@json_option("patchctl.report.stacks:PinOutput")
@click.pass_obj
def command(
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
