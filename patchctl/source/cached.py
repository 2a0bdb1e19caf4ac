"""Looks up bases in the cache, without importing what fetches them."""

from __future__ import annotations

import re
from pathlib import Path

from patchctl.errors import BadManifest, SourceMismatch
from patchctl.manifest.types import Pin, Sdist, Stack, Upstream
from patchctl.source import cache
from patchctl.source.types import Base

_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.!+_-]*")


def cached_git(name: str, pin: Pin, root: Path) -> Base | None:
    """Return the pin's base in the cache, or None. Raises SourceMismatch if it is not the pinned one."""
    if pin.commit is None:
        return None
    repo = cache.git_place(root, name, pin.commit)
    record = cache.read_record(repo)
    if record is None:
        return None
    if record.commit != pin.commit:
        raise SourceMismatch(f"the record names commit {record.commit}", where=str(repo), hint=cache.REFRESH)
    check_tree(record.tree, pin, str(repo))
    return Base(name, "git", repo, record.commit, record.tree, record.origin, 0)


def cached_sdist(name: str, upstream: Upstream, stack: Stack, root: Path) -> Base | None:
    """Return the base of the pin's archive in the cache, or None; also None if other files are declared now."""
    sdist = stack.pin.sdist
    if sdist is None or upstream.sdist is None:
        return None
    repo = sdist_place(root, name, sdist)
    record = cache.read_record(repo)
    if record is None or cache.kept_archive(repo) is None:
        return None
    if record.sha256 != sdist.sha256:
        raise SourceMismatch(
            f"the record names sha256 {record.sha256}, but {sdist.sha256} is pinned",
            where=str(repo),
            hint=cache.REFRESH,
        )
    if {g.path for g in stack.generated} != set(record.declared):
        return None
    return Base(name, "sdist", repo, record.commit, record.tree, record.origin, 0)


def check_tree(tree: str, pin: Pin, where: str) -> None:
    """Raise SourceMismatch if another tree is pinned."""
    if pin.tree is not None and tree != pin.tree:
        raise SourceMismatch(
            f"commit {pin.commit} has tree {tree}, but {pin.tree} is pinned",
            where=where,
            hint="the manifest's commit and tree do not belong together: correct the pin",
        )


def sdist_place(root: Path, name: str, sdist: Sdist) -> Path:
    """Return the path of an archive's base in the cache. Raises BadManifest."""
    if _VERSION.fullmatch(sdist.version) is None:
        raise BadManifest(f"{sdist.version!r} is not a version of a source distribution (upstream {name})")
    return cache.sdist_place(root, name, sdist.version, sdist.sha256)
