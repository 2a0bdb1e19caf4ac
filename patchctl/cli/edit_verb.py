"""patchctl edit."""

from __future__ import annotations

from pathlib import Path

import click

from patchctl.cli.app import App, complete_upstream, find_stack, json_option, source_options


@click.command("edit")
@click.argument("name", metavar="UPSTREAM[/STACK]", shell_complete=complete_upstream)
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where to [default: edit/UPSTREAM-STACK].",
)
@source_options
@json_option
@click.pass_obj
def command(
    app: App, name: str, folder: Path | None, source: str, mirrors: tuple[str, ...], offline: bool, as_json: bool
) -> None:
    """Open a stack as commits in a work tree, to change it with git.

    One commit a patch, on a branch of an ordinary repository: amend, reorder, drop and add commits as you like, then
    write them back with `patchctl export`. A new commit becomes a patch when its message ends with the trailers Feature,
    Switch, Upstream-Status and Drop-When; its new files become carried files.
    """
    from patchctl.errors import SourceUnavailable
    from patchctl.source.obtain import obtain
    from patchctl.stack.plan import build_stack, load_patches, missing_files
    from patchctl.workspace.edit import default_folder, make_edit_tree, series_digest

    dist = app.distribution
    stack = find_stack(dist, name)
    options = app.source_options(source, mirrors, offline)
    progress = app.progress(as_json)
    base = obtain(stack.upstream, dist.upstream(stack.upstream), stack, options, progress)
    progress.finish()
    patches = load_patches(dist, stack)
    lacking = missing_files(base, patches)
    if lacking:
        named = ", ".join(p.feature for p, _ in lacking)
        hint = f"--mirror {stack.upstream}=URL names a git repository, which has every file"
        raise SourceUnavailable(f"the {base.form} of {stack.upstream} lacks files of {named}", [], hint=hint)
    result = build_stack(base, patches, [], options.cache)
    folder = (folder or default_folder(stack)).absolute()
    digest = series_digest((p.file.name, p.data, p.carried) for p in patches)
    make_edit_tree(folder, stack, base, result, digest)
    data = {
        "upstream": stack.upstream,
        "stack": stack.name,
        "folder": str(folder),
        "base": base.commit,
        "tip": result.tip_commit,
    }
    lines = [
        f"{stack.upstream}/{stack.name}: {len(result.steps)} commits on {base.commit[:12]} in {folder}",
        f"change them with git, then: patchctl export {name}",
    ]
    app.emit("edit", data, lambda style: lines, as_json)
