"""patchctl use, and what `patchctl --version` prints: the tool, the distribution in use, and its releases."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from patchctl import __version__
from patchctl.cli.app import App, json_option
from patchctl.errors import PatchctlError, WrongUse

if TYPE_CHECKING:
    from patchctl.report.sources import UseOutput


@click.command("use")
@click.argument("target", metavar="[URL[@REV] | COMMIT]", required=False)
@click.option("--list", "as_list", is_flag=True, help="List what was fetched; * marks the default.")
@click.option("--none", "forget", is_flag=True, help="Go back to the distribution installed with patchctl.")
@json_option("patchctl.report.sources:UseOutput")
@click.pass_obj
def command(app: App, target: str | None, as_list: bool, forget: bool, as_json: bool) -> None:
    """Fetch a distribution's repository at a revision, and take it wherever no other is named or around.

    REV is a tag, a branch or a commit [default: the remote's HEAD]; it is resolved once, and the commit is recorded. Every object
    is verified against the commit's id. Afterwards no network is needed; another `use` of a branch moves on. COMMIT, or its first
    seven digits, goes back to one that was fetched before.

    \b
    patchctl use URL@REV
    patchctl use --list
    """
    from patchctl.distributions.use import forget_default, use

    if sum((target is not None, as_list, forget)) != 1:
        raise WrongUse("name a URL, --list or --none", hint="`patchctl use --help` shows how it is used")
    if forget:
        forget_default()
    fetched = target is not None and use(target, app.progress(as_json)).fetched
    data = _output(fetched)
    app.emit("use", data, lambda style: _text(data, as_list), as_json)


def _output(fetched: bool) -> UseOutput:
    from patchctl.distributions.use import fetched as all_fetched
    from patchctl.manifest.default_roots import chosen_root, own_root
    from patchctl.report.sources import UsedRow, UseOutput

    rows = [UsedRow(one, root, root == chosen_root()) for one, root in all_fetched()]
    return UseOutput(rows, chosen_root() or own_root(), fetched)


def _text(data: UseOutput, as_list: bool) -> Iterable[str]:
    for row in data.distributions:
        if as_list or row.default:
            at = f"@{row.used.revision}" if row.used.revision else ""
            yield f"{'*' if row.default else ' '} {row.used.commit[:12]}  {row.used.address}{at}"
    if as_list and not data.distributions:
        yield "none was fetched"
    yield f"default: {_shown(data.default)}"


def _shown(root: Path | None) -> str:
    return str(root) if root is not None else "none"


def version_lines(app: App) -> list[str]:
    """Return the lines; without a distribution, or with a broken one, what is wrong with it."""
    lines = [f"patchctl {__version__}"]
    try:
        root = app.found_root
        lines.append(f"distribution: {_described(root)}")
        lines.append(f"releases: {', '.join(app.distribution.releases) or 'none'}")
    except PatchctlError as error:
        lines.append(f"distribution: {error}")
    return lines


def _described(root: Path) -> str:
    """Return where a distribution is, and its commit if it has one."""
    from patchctl.distributions.use import commit_of
    from patchctl.manifest.default_roots import own_root, used_at
    from patchctl.terminal.text import visible_line

    shown = visible_line(str(root))
    there, commit = used_at(root), commit_of(root)
    if there is not None:
        shown += f", {there.address}" + (f"@{there.revision}" if there.revision else "")
    elif root == own_root():
        shown += ", installed with patchctl"
    return shown + (f", commit {commit}" if commit else "")
