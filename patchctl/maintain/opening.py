"""Opens a stack as a work tree, for `edit` and `new`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from patchctl.errors import SourceUnavailable
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.types import Stack
from patchctl.source.obtain import obtain
from patchctl.source.types import SourceOptions
from patchctl.stack.memo import StackResult
from patchctl.stack.plan import build_stack, load_patches, missing_files
from patchctl.terminal.progress import Progress
from patchctl.workspace.edit import default_folder, make_edit_tree, series_digest


@dataclass(frozen=True)
class Opened:
    """A work tree with the stack's commits, in `folder`."""

    folder: Path
    result: StackResult


def open_stack(
    dist: Distribution, stack: Stack, folder: Path | None, options: SourceOptions, progress: Progress
) -> Opened:
    """Make the work tree, in `folder` or where it belongs.

    Raises SourceUnavailable, and LocalEdits when what is there was not exported.
    """
    base = obtain(stack.upstream, dist.upstream(stack.upstream), stack, options, progress)
    progress.finish()
    patches = load_patches(dist, stack)
    lacking = missing_files(base, patches)
    if lacking:
        named = ", ".join(p.feature for p, _ in lacking)
        hint = f"--mirror {stack.upstream}=URL names a git repository, which has every file"
        raise SourceUnavailable(f"the {base.form} of {stack.upstream} lacks files of {named}", [], hint=hint)
    result = build_stack(base, patches, [], options.cache)
    place = (folder or default_folder(stack)).absolute()
    digest = series_digest((p.file.name, p.data, p.carried) for p in patches)
    make_edit_tree(place, stack, base, result, digest)
    return Opened(place, result)
