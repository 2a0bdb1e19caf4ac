"""What `patchctl --version` prints: the tool, the distribution in use, and its releases."""

from __future__ import annotations

from pathlib import Path

from patchctl import __version__
from patchctl.cli.app import App
from patchctl.errors import PatchctlError


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
    from patchctl.distributions.commit import commit_of
    from patchctl.manifest.default_roots import own_root, used_at
    from patchctl.terminal.text import visible_line

    shown = visible_line(str(root))
    there, commit = used_at(root), commit_of(root)
    if there is not None:
        shown += f", {there.address}" + (f"@{there.revision}" if there.revision else "")
    elif root == own_root():
        shown += ", installed with patchctl"
    return shown + (f", commit {commit}" if commit else "")
