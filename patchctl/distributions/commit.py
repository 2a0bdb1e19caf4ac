"""Finds the commit of a distribution: of a clone, of one that `use` fetched, or of the one in the wheel."""

from __future__ import annotations

from pathlib import Path

from patchctl.git.history import head_commit
from patchctl.manifest.default_roots import installed_commit, own_root, used_at


def commit_of(root: Path) -> str | None:
    """Return the commit of the distribution at `root`, or None if it is in no repository."""
    there = used_at(root)
    if there is not None:
        return there.commit
    return installed_commit() if root == own_root() else head_commit(root)
