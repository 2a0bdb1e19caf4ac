"""Verifies that a base in the cache is unchanged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from patchctl.errors import GitKilled, SourceMismatch
from patchctl.git.catfile import ObjectReader
from patchctl.git.pack import ends_with_digest
from patchctl.source.archive import is_generated, read_archive, tree_of
from patchctl.source.cache import RECORD, REFRESH, REPOSITORY_CONFIG, read_record
from patchctl.source.config import archive_limits
from patchctl.source.types import Base
from patchctl.terminal.text import visible_line


def is_intact(repo: Path, fetched: Path) -> bool:
    """Whether the base at `repo`, reread in full, equals the one just fetched to `fetched`, from any origin.

    A refresh keeps such a base: another run may be reading it and would find its files gone.
    """
    try:
        there, record = read_record(repo), read_record(fetched)
        if there is None or record is None or replace(there, origin=record.origin) != record:
            return False
        if _beside_objects(repo) != _beside_objects(fetched):
            return False
        check_base(Base(there.upstream, there.form, repo, there.commit, there.tree, there.origin, 0))
    except (SourceMismatch, GitKilled, OSError):
        return False
    return True


def _beside_objects(repo: Path) -> dict[str, bytes]:
    """Return every file except packs, which may differ and hold the same objects, and the record."""
    files = (file for file in repo.rglob("*") if file.is_file() and file.parent.name != "pack" and file.name != RECORD)
    return {str(file.relative_to(repo)): file.read_bytes() for file in files}


def check_base(base: Base) -> int:
    """Reread every object of a base, verifying its id, and the digests of its pack. Returns the number of objects.

    In form sdist, also rebuilds the tree from the archive. Raises SourceMismatch with the file or object that
    changed.
    """
    _check_layout(base)
    for file in _pack_files(base):
        _check_trailer(file)
    with ObjectReader(base.repo, afresh=True) as reader:
        kind, data = reader.read(base.commit)
        if kind != "commit" or not data.startswith(b"tree " + base.tree.encode() + b"\n"):
            what = f"{base.commit} is not a commit with tree {base.tree}"
            raise SourceMismatch(what, where=str(base.repo), hint=REFRESH)
        files = reader.files(base.tree)
        count = sum(1 for _ in reader.blobs(files, files))
    if base.form == "sdist":
        _check_against_archive(base)
    return count


def _check_layout(base: Base) -> None:
    """Check the repository's own settings, which git would obey, and that nothing was added."""
    config = base.repo / "config"
    if not config.is_file() or config.read_text(encoding="utf-8", errors="replace") != REPOSITORY_CONFIG:
        raise SourceMismatch("the repository's configuration was modified", where=str(config), hint=REFRESH)
    if not (base.repo / "HEAD").is_file():  # without HEAD, git does not recognise the repository
        raise SourceMismatch("the repository has no HEAD", where=str(base.repo / "HEAD"), hint=REFRESH)
    for extra in ("hooks", "objects/info", "info"):
        if (base.repo / extra).exists():
            raise SourceMismatch(
                "unexpected file or folder in the repository", where=str(base.repo / extra), hint=REFRESH
            )


def _pack_files(base: Base) -> list[Path]:
    folder = base.repo / "objects" / "pack"
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    if [file.suffix for file in files] != [".idx", ".pack"]:
        names = ", ".join(visible_line(file.name) for file in files) or "nothing"
        raise SourceMismatch(f"expected one pack and its index, found {names}", where=str(folder), hint=REFRESH)
    return files


def _check_trailer(file: Path) -> None:
    """Check a pack's or index's trailing SHA-1, which git itself only compares in `git fsck`."""
    if not ends_with_digest(file):
        raise SourceMismatch("the file was modified: its digest does not match", where=str(file), hint=REFRESH)


def _check_against_archive(base: Base) -> None:
    """Rebuild the tree from the cached archive. Raises SourceMismatch if archive, record and tree disagree."""
    record = read_record(base.repo)
    if record is None or record.archive is None or record.sha256 is None or "/" in record.archive:
        raise SourceMismatch("the base has no record of its archive", where=str(base.repo), hint=REFRESH)
    archive = base.repo.with_name(record.archive)
    if not archive.is_file():
        raise SourceMismatch("the base's archive is missing", where=str(archive), hint=REFRESH)
    declared = {path.encode() for path in record.declared}
    archived = read_archive(archive, record.sha256, archive_limits())
    tree = tree_of(f for f in archived if not is_generated(f, declared))
    if (tree, base.commit) != (base.tree, record.commit):
        raise SourceMismatch(
            f"the archive gives tree {tree}, but the base has {base.tree}", where=str(base.repo), hint=REFRESH
        )
