"""The bases that the cache has. What makes one that it lacks, from git or from an archive, need not be imported for these."""

from __future__ import annotations

import re
from pathlib import Path

from patchctl.errors import BadManifest, SourceMismatch
from patchctl.manifest.types import Pin, Sdist, Stack, Upstream
from patchctl.source import cache
from patchctl.source.types import Base

_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.!+_-]*")


def cached_git(name: str, pin: Pin, root: Path) -> Base | None:
    """The base of this pin in the cache, or None. SourceMismatch when what lies there is not the pin's."""
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
    """The base of this pin's archive in the cache, or None; None too when other files are declared now."""
    sdist = stack.pin.sdist
    if sdist is None or upstream.sdist is None:
        return None
    repo = sdist_place(root, name, sdist)
    record = cache.read_record(repo)
    if record is None or cache.kept_archive(repo) is None:
        return None
    if record.sha256 != sdist.sha256:
        raise SourceMismatch(
            f"the record names sha256 {record.sha256}, and {sdist.sha256} is pinned",
            where=str(repo),
            hint=cache.REFRESH,
        )
    if {g.path for g in stack.generated} != set(record.declared):
        return None
    return Base(name, "sdist", repo, record.commit, record.tree, record.origin, 0)


def check_tree(tree: str, pin: Pin, where: str) -> None:
    """Raise SourceMismatch when another tree is pinned."""
    if pin.tree is not None and tree != pin.tree:
        raise SourceMismatch(
            f"commit {pin.commit} has tree {tree}, and {pin.tree} is pinned",
            where=where,
            hint="the manifest names a commit and a tree that do not belong together",
        )


def sdist_place(root: Path, name: str, sdist: Sdist) -> Path:
    """Where the cache keeps the base of an archive. Raises BadManifest."""
    if _VERSION.fullmatch(sdist.version) is None:
        raise BadManifest(f"{sdist.version!r} is no version of a source distribution (upstream {name})")
    return cache.sdist_place(root, name, sdist.version, sdist.sha256)
