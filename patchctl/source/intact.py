"""The proof that a base of the cache is unchanged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from patchctl.errors import GitKilled, SourceMismatch
from patchctl.git.catfile import ObjectReader
from patchctl.git.packfiles import ends_with_digest
from patchctl.source.archive import is_generated, read_archive, tree_of
from patchctl.source.cache import RECORD, REFRESH, REPOSITORY_CONFIG, read_record
from patchctl.source.config import archive_limits
from patchctl.source.types import Base
from patchctl.terminal.text import visible_line


def is_intact(repo: Path, fetched: Path) -> bool:
    """Whether the base at `repo` is the one that was `fetched` just now, from wherever, every byte of it read again.

    Such a one stays through a refresh: another run may be reading it, and would find its files gone.
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
    """HEAD, config, references, the shallow boundary: all but the packs, which may differ and hold the same, and the record."""
    files = (file for file in repo.rglob("*") if file.is_file() and file.parent.name != "pack" and file.name != RECORD)
    return {str(file.relative_to(repo)): file.read_bytes() for file in files}


def check_base(base: Base) -> int:
    """Read every object of a base again and compute its id, and the digests of its pack; returns how many objects.

    In form sdist the tree is also made again from the archive. SourceMismatch names the file or object that changed.
    """
    _check_layout(base)
    for file in _pack_files(base):
        _check_trailer(file)
    with ObjectReader(base.repo, afresh=True) as reader:
        kind, data = reader.read(base.commit)
        if kind != "commit" or not data.startswith(b"tree " + base.tree.encode() + b"\n"):
            what = f"{base.commit} is no commit of tree {base.tree}"
            raise SourceMismatch(what, where=str(base.repo), hint=REFRESH)
        files = reader.files(base.tree)
        count = sum(1 for _ in reader.blobs(files, files))
    if base.form == "sdist":
        _check_against_archive(base)
    return count


def _check_layout(base: Base) -> None:
    """A repository's own settings count when git reads it: these must be what was written."""
    config = base.repo / "config"
    if not config.is_file() or config.read_text(encoding="utf-8", errors="replace") != REPOSITORY_CONFIG:
        raise SourceMismatch("the repository's settings were changed", where=str(config), hint=REFRESH)
    if not (base.repo / "HEAD").is_file():  # without it no git takes the folder for a repository
        raise SourceMismatch("the repository's HEAD is gone", where=str(base.repo / "HEAD"), hint=REFRESH)
    for extra in ("hooks", "objects/info", "info"):
        if (base.repo / extra).exists():
            raise SourceMismatch("this was added to the repository", where=str(base.repo / extra), hint=REFRESH)


def _pack_files(base: Base) -> list[Path]:
    folder = base.repo / "objects" / "pack"
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    if [file.suffix for file in files] != [".idx", ".pack"]:
        names = ", ".join(visible_line(file.name) for file in files) or "nothing"
        raise SourceMismatch(
            f"one pack and its index belong here, and {names} is there", where=str(folder), hint=REFRESH
        )
    return files


def _check_trailer(file: Path) -> None:
    """A pack and its index end with the SHA-1 of all that goes before; git compares it only in `git fsck`."""
    if not ends_with_digest(file):
        raise SourceMismatch("the file was changed: its digest is another one", where=str(file), hint=REFRESH)


def _check_against_archive(base: Base) -> None:
    """Make the tree again from the archive in the cache. SourceMismatch when archive, record and tree do not agree."""
    record = read_record(base.repo)
    if record is None or record.archive is None or record.sha256 is None or "/" in record.archive:
        raise SourceMismatch("the record of the base is missing", where=str(base.repo), hint=REFRESH)
    archive = base.repo.with_name(record.archive)
    if not archive.is_file():
        raise SourceMismatch("the archive of the base is gone", where=str(archive), hint=REFRESH)
    declared = {path.encode() for path in record.declared}
    archived = read_archive(archive, record.sha256, archive_limits())
    tree = tree_of(f for f in archived if not is_generated(f, declared))
    if (tree, base.commit) != (base.tree, record.commit):
        raise SourceMismatch(
            f"the archive makes tree {tree}, and the base has {base.tree}", where=str(base.repo), hint=REFRESH
        )
