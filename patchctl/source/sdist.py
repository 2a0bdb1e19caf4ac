"""Form sdist: turns an archive into a bare repository with one root commit.

The archive has upstream's tracked files (each project chooses which, and some ship a submodule's too) and files
written by its build. The latter are left out, so that the tree has upstream's own bytes only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from patchctl.errors import Tried
from patchctl.git.objects import Files, Person, TreeBuilder, TreeEntry, object_id, render_commit
from patchctl.git.pack import PackWriter
from patchctl.language import message
from patchctl.manifest.types import Sdist, Stack, Upstream
from patchctl.source import cache
from patchctl.source.archive import ArchivedFile, is_generated, read_archive
from patchctl.source.config import archive_limits
from patchctl.source.intact import is_intact
from patchctl.source.types import Base, Download, SourceOptions
from patchctl.terminal.progress import Progress
from patchctl.terminal.text import visible_line

_AUTHOR = Person("patchctl", "patchctl@localhost", "0 +0000")


def write_commit(
    repo: Path,
    files: Iterable[ArchivedFile],
    title: str,
    sdist: Sdist,
    kept: Callable[[bytes], bool] = lambda path: True,
) -> tuple[str, str]:
    """Write the root commit of these files as one pack into `repo`, with the content of the `kept` ones; return (commit, tree).

    Author, date and message are fixed, so that an archive gives the same commit id on every machine.
    """
    writer = PackWriter(spool=repo)
    listing: Files = {}
    for file in files:
        oid = writer.add("blob", file.data) if kept(file.path) else object_id("blob", file.data)
        listing[file.path] = TreeEntry(file.mode, oid)
    folders: dict[str, bytes] = {}
    tree = TreeBuilder(listing).write(folders)
    for oid, data in folders.items():
        writer.add_known(oid, "tree", data)
    text = f"{title}\n\nsha256: {sdist.sha256}\n"
    commit = writer.add("commit", render_commit(tree, [], _AUTHOR, _AUTHOR, text))
    writer.write(repo / "objects" / "pack")
    return commit, tree


def fetch(
    upstream: Upstream, stack: Stack, options: SourceOptions, progress: Progress, tried: list[Tried]
) -> Base | None:
    """Get the archive (from the cache, a bundle, or package indexes) and make its commit.

    Returns None and adds to `tried` if no place has it. Raises SourceMismatch if it is not the pinned one.
    """
    name, sdist = stack.upstream, stack.pin.sdist
    if sdist is None or upstream.sdist is None:
        tried.append(Tried(message("package index"), message("no source distribution is pinned for it")))
        return None
    with cache.staging(options.cache) as folder:
        found = _kept(name, sdist, options) or _bundled(name, sdist, options, folder, tried)
        if found is None and options.offline:
            tried.append(Tried(message("package index"), message("the run is offline")))
            return None
        if found is None:
            from patchctl.source.package_index import download

            found = download(upstream.sdist, sdist, folder, progress, tried)
        return None if found is None else _make_base(found, upstream.sdist, stack, options, folder)


def _kept(name: str, sdist: Sdist, options: SourceOptions) -> Download | None:
    """Return the archive in the cache: a killed run, or a changed list of generated files, leaves it without a base."""
    repo = cache.sdist_place(options.cache, name, sdist)
    archive = None if options.refresh else cache.kept_archive(repo)
    if archive is None:
        return None
    record = cache.read_record(repo)
    return Download(archive, record.origin if record else str(archive), 0)


def _bundled(name: str, sdist: Sdist, options: SourceOptions, folder: Path, tried: list[Tried]) -> Download | None:
    """Extract the bundle's archive into `folder`; None, with a reason, if it has none or another one."""
    bundle = options.bundle
    if bundle is None:
        return None
    source = bundle.source(name, "sdist")
    shown = visible_line(message("bundle {path}", path=bundle.path))
    if source is None or bundle.sha256_of(source.member) != sdist.sha256:
        reason = message("not included in form {form}", form="sdist")
        if source is not None:
            reason = message("the archive in it has the sha256 {digest}", digest=bundle.sha256_of(source.member))
        tried.append(Tried(shown, reason))
        return None
    data = bundle.read(source.member)
    target = folder / ("download.zip" if source.member.endswith(".zip") else "download.tar.gz")
    target.write_bytes(data)
    return Download(target, shown, len(data))


def _make_base(found: Download, distribution: str, stack: Stack, options: SourceOptions, folder: Path) -> Base:
    name, sdist = stack.upstream, stack.pin.sdist
    assert sdist is not None
    generated = {g.path.encode() for g in stack.generated}
    archived = read_archive(found.path, sdist.sha256, archive_limits())
    repo = cache.new_repository(folder / "base.git")
    title = f"{distribution} {sdist.version} from its source distribution"
    commit, tree = write_commit(repo, (f for f in archived if not is_generated(f, generated)), title, sdist)
    final = cache.sdist_place(options.cache, name, sdist)
    kept = final.with_name(final.name.removesuffix(".git") + _suffix(found.path))
    if found.path != kept:
        cache.place(found.path, kept, replace=True)
    declared = tuple(sorted(g.path for g in stack.generated))
    record = cache.BaseRecord(name, "sdist", commit, tree, found.origin, kept.name, sdist.sha256, declared)
    cache.seal(repo, record)
    replaced = not is_intact(final, repo) if options.refresh else _is_other(final, record)
    cache.place(repo, final, replace=replaced)
    return Base(name, "sdist", final, commit, tree, found.origin, found.size)


def _is_other(final: Path, record: cache.BaseRecord) -> bool:
    """Whether the cached base was made from another list of generated files.

    One with the same list, which another run has just put there, stays: it may be in use.
    """
    there = cache.read_record(final)
    return there is not None and there.declared != record.declared


def _suffix(archive: Path) -> str:
    return ".zip" if archive.name.endswith(".zip") else ".tar.gz"
