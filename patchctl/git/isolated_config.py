"""Shows git a repository without its own `config`: objects, refs and index are used, settings are not.

A work tree's `.git/config` overrides everything given from outside, and much of it names commands (core.fsmonitor,
filters, a promisor remote's uploadpack) or changes file content (core.autocrlf, core.symlinks). Names of filters and
includes cannot be listed in advance, so git is shown another common directory (GIT_COMMON_DIR, as in a linked
worktree): links to the repository's objects and refs beside a configuration of ours.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from patchctl.git.run import scratch_file, scratch_folder

# Keeps files as they are: an upstream's .gitattributes must not convert them in our trees.
ATTRIBUTES = "* -text -filter -ident -working-tree-encoding\n"
# What linked worktrees share, without config, hooks, info/attributes and info/grafts.
_SHARED = ("objects", "refs", "packed-refs", "logs", "shallow", "info/exclude")
_SHARED_WHERE_THERE = ("reftable", "worktrees", "rr-cache")  # none of these is created by the git commands that we run


def common_folder(git_dir: Path) -> Path:
    """Return the common directory of a git directory: itself, unless it is a linked worktree's."""
    pointer = git_dir / "commondir"
    if pointer.is_file():
        return Path(os.path.normpath(git_dir / pointer.read_text(encoding="utf-8").strip()))
    return git_dir


def without_settings(git_dir: Path, *, file_modes: bool = True) -> str:
    """Return the GIT_COMMON_DIR that keeps git from reading this git directory's configuration."""
    common = common_folder(git_dir).absolute()
    modes = "true" if file_modes else "false"
    name = hashlib.sha256(os.fsencode(f"{git_dir.absolute()}\0{common}\0{modes}")).hexdigest()[:16]
    place = scratch_folder() / f"common-{name}"
    if not place.is_dir():
        _make(place, common, modes)
    return str(place)


def _make(place: Path, common: Path, modes: str) -> None:
    """Create the common directory with few new files: ext4 takes 0.3 ms per file where many were just deleted."""
    building = Path(tempfile.mkdtemp(dir=place.parent))
    (building / "info").mkdir()
    reftable = (common / "reftable").is_dir()
    settings = f"[core]\n\trepositoryFormatVersion = {int(reftable)}\n\tbare = false\n\tfileMode = {modes}\n"
    settings += "[extensions]\n\trefStorage = reftable\n" if reftable else ""
    for name, text in (("config", settings), ("info/attributes", ATTRIBUTES)):
        try:
            (building / name).hardlink_to(scratch_file(text))
        except OSError:  # a file system without hard links
            (building / name).write_text(text, encoding="ascii")
    for shared in (*_SHARED, *(name for name in _SHARED_WHERE_THERE if (common / name).is_dir())):
        (building / shared).symlink_to(common / shared)
    try:
        building.rename(place)
    except OSError:
        if not place.is_dir():  # otherwise another thread was faster
            raise
