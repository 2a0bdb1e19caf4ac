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

from patchctl.git.run import scratch_folder

# Files are bytes: an upstream's .gitattributes must not turn them into something else in our trees.
ATTRIBUTES = "* -text -filter -ident -working-tree-encoding\n"
# What a linked worktree shares with its repository, less config, hooks, info/attributes and info/grafts.
_SHARED = ("objects", "refs", "packed-refs", "logs", "shallow", "worktrees", "rr-cache", "info/exclude")


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
    building = Path(tempfile.mkdtemp(dir=place.parent))
    (building / "info").mkdir()
    (building / "info" / "attributes").write_text(ATTRIBUTES, encoding="ascii")
    reftable = (common / "reftable").is_dir()
    settings = f"[core]\n\trepositoryFormatVersion = {int(reftable)}\n\tbare = false\n\tfileMode = {modes}\n"
    settings += "[extensions]\n\trefStorage = reftable\n" if reftable else ""
    (building / "config").write_text(settings, encoding="ascii")
    for shared in (*_SHARED, *(["reftable"] if reftable else [])):
        (building / shared).symlink_to(common / shared)
    try:
        building.rename(place)
    except OSError:
        if not place.is_dir():  # else another thread was first
            raise
