"""patchctl show."""

from __future__ import annotations

from dataclasses import replace

import click

from patchctl.cli.app import App, json_option


def complete_feature(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion: the features of the distribution, by the names of their files: nothing is parsed for it."""
    try:
        params = ctx.find_root().params
        dist = App(root=params.get("root"), cache=params.get("cache")).distribution
        names = {f.stem.split("-", 2)[-1] for stack in dist.stacks.values() for f in dist.patch_files(stack)}
        return sorted(name for name in names if name.startswith(incomplete))
    except Exception:  # a completion must never print into the user's command line
        return []


@click.command("show")
@click.argument("target", metavar="FEATURE[@UPSTREAM]|PATCHFILE", shell_complete=complete_feature)
@click.option("--diff", is_flag=True, help="Print the diff as well.")
@json_option("patchctl.report.catalog:ShowOutput")
@click.pass_obj
def command(app: App, target: str, diff: bool, as_json: bool) -> None:
    """Show one patch: what it is for, its switch, its files, where it is used, its tests.

    A feature that spans several upstreams has a patch in each of them: all are shown, or the one of UPSTREAM. PATCHFILE
    is the name of a patch file or its path, which need not belong to a stack.

    \b
    Examples:
      patchctl show skip_old_log_prob
      patchctl show chunked_moe@vllm-ascend --diff
    """
    from patchctl.catalog.features import Catalog
    from patchctl.report.catalog import ShowOutput, show_text

    details = [d if diff else replace(d, diff=None) for d in Catalog(app.distribution).details(target)]
    app.emit("show", ShowOutput(details), lambda style: show_text(details, style), as_json)
