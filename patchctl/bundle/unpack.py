"""Unpacks the distribution of a bundle into a new folder, completely or not at all."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from patchctl.atomic import filling, make_folder, staging_of
from patchctl.bundle.layout import DISTRIBUTION, BundleMember
from patchctl.bundle.reader import Bundle
from patchctl.errors import SourceMismatch, WrongUse
from patchctl.language import message
from patchctl.os_errors import error_type
from patchctl.source import cache


def distribution_members(bundle: Bundle) -> dict[str, BundleMember]:
    """Return the files of the distribution by path below its root."""
    members = bundle.index.members
    return {m.name.removeprefix(DISTRIBUTION): m for m in members if m.name.startswith(DISTRIBUTION)}


def distribution_id(bundle: Bundle) -> str:
    """Return an id of the distribution's content, equal for bundles of the same distribution."""
    members = sorted(distribution_members(bundle).items())
    lines = (f"{m.sha256} {'x' if m.executable else '-'} {path}\n" for path, m in members)
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]


def cached_distribution(bundle: Bundle, root: Path) -> Path:
    """Return the bundle's distribution in the cache, <cache>/bundles/<id>, unpacked if necessary and verified.

    Raises SourceMismatch if the cached one was modified.
    """
    place = root / "bundles" / distribution_id(bundle)
    if not place.exists():
        with cache.staging(root) as folder:
            staged = folder / "distribution"
            _write(bundle, staged)
            make_folder(place.parent)
            with contextlib.suppress(OSError):  # another run was faster
                os.rename(staged, place)
    _check(place, distribution_members(bundle))
    return place


def unpack_distribution(bundle: Bundle, folder: Path) -> int:
    """Write the distribution to `folder`, which must not exist or be empty; return the number of files.

    A partial copy of the same distribution, left by a killed run, is completed. Raises WrongUse if the folder has
    anything else or cannot be written.
    """
    members = distribution_members(bundle)
    if folder.exists() and not _begun(folder, members):
        raise WrongUse("the folder is not empty", where=str(folder), hint="name a new or empty folder")
    try:
        with filling(folder, last="manifests") as staged:  # manifests/ goes last: it makes the folder a distribution
            _write(bundle, staged)
    except OSError as error:
        what = f"cannot write the folder: {error.strerror or errno.errorcode.get(error.errno or 0, 'error')}"
        raise error_type(error)(what, where=str(folder)) from error
    return len(members)


def _begun(folder: Path, members: Mapping[str, BundleMember]) -> bool:
    """Whether the folder has nothing but complete files of this distribution, as a killed run leaves it."""
    staged = staging_of(folder)
    for top, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if Path(top, name) != staged]
        for path in (Path(top, name) for name in (*folders, *files)):
            if path.is_dir() and not path.is_symlink():
                continue
            member = members.get(path.relative_to(folder).as_posix())
            if member is None or path.is_symlink() or not path.is_file():
                return False
            if hashlib.sha256(path.read_bytes()).hexdigest() != member.sha256:
                return False
    return folder.is_dir()


def _write(bundle: Bundle, folder: Path) -> None:
    """Write the files. Names were checked with the index, so none leads outside."""
    for path, member in distribution_members(bundle).items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(bundle.read(member.name))
        if member.executable:
            target.chmod(target.stat().st_mode | 0o111)


def _check(folder: Path, wanted: Mapping[str, BundleMember]) -> None:
    hint = message("move {folder} away; it is then unpacked again", folder=folder)
    for top, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]  # left by running a script
        for name in (*folders, *files):
            path = Path(top, name)
            shown = path.relative_to(folder).as_posix()
            if path.is_symlink() or (not path.is_dir() and shown not in wanted):
                raise SourceMismatch(
                    message("unexpected file or folder in the bundle's distribution"), where=str(path), hint=hint
                )
    for shown, member in wanted.items():
        path = folder / shown
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != member.sha256:
            raise SourceMismatch(
                message("this file of the bundle's distribution was modified"), where=str(path), hint=hint
            )
