"""A repository without its own settings: its objects, references and index are read and written, its `config` is not.

What a work tree's `.git/config` says beats everything that git is given from outside, and much of it names commands
(core.fsmonitor, filters, a promisor remote's uploadpack) or changes what a file's bytes are (core.autocrlf, core.symlinks).
Names of filters and includes cannot be listed in advance. So git is shown another common directory (GIT_COMMON_DIR, as a
linked worktree has one): links to the repository's objects and references, beside a configuration of ours.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from patchctl.git.run import scratch_file, scratch_folder

# Files are bytes: an upstream's .gitattributes must not turn them into something else in our trees.
ATTRIBUTES = "* -text -filter -ident -working-tree-encoding\n"
# What a linked worktree shares with its repository, less config, hooks, info/attributes and info/grafts.
_SHARED = ("objects", "refs", "packed-refs", "logs", "shallow", "info/exclude")
_SHARED_WHERE_THERE = ("reftable", "worktrees", "rr-cache")  # no git that we run makes one of these


def common_folder(git_dir: Path) -> Path:
    """What a git directory shares with its linked worktrees: itself, unless it belongs to one of those."""
    pointer = git_dir / "commondir"
    if pointer.is_file():
        return Path(os.path.normpath(git_dir / pointer.read_text(encoding="utf-8").strip()))
    return git_dir


def without_settings(git_dir: Path, *, file_modes: bool = True) -> str:
    """The value of GIT_COMMON_DIR that keeps git on this git directory from reading its configuration."""
    common = common_folder(git_dir).absolute()
    modes = "true" if file_modes else "false"
    name = hashlib.sha256(os.fsencode(f"{git_dir.absolute()}\0{common}\0{modes}")).hexdigest()[:16]
    place = scratch_folder() / f"common-{name}"
    if not place.is_dir():
        _make(place, common, modes)
    return str(place)


def _make(place: Path, common: Path, modes: str) -> None:
    """As few new files as can be, since a file system makes one slowly where many were deleted a moment ago (ext4: 0.3 ms)."""
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
        if not place.is_dir():  # else another thread was first
            raise
