"""The cache on the disk: where a base lies, how it gets there whole or not at all.

    <cache>/git/<upstream>/<commit>.git                        form git
    <cache>/sdist/<upstream>/<version>-<sha256[:16]>.git       form sdist
    <cache>/sdist/<upstream>/<version>-<sha256[:16]>.tar.gz    the archive that it was made from
    <cache>/tmp/                                               what is being written

Everything is written below tmp/ and put in its place by one rename. No lock is needed: two runs that fetch the same
thing write the same bytes, and who comes second throws its own copy away.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from patchctl.atomic import make_folder, new_folder, sweep
from patchctl.denied import refusal
from patchctl.errors import MachineFailed, PatchctlError, SourceMismatch, WrongUse
from patchctl.manifest.records import BadRecord, parse
from patchctl.manifest.types import ObjectId
from patchctl.source.types import FORMS, Form

REPOSITORY_CONFIG = "[core]\n\trepositoryformatversion = 0\n\tbare = true\n"
RECORD = "patchctl.json"
SCHEMA = 1
_REF = "refs/heads/base"
_ABANDONED_SECONDS = 24 * 3600.0
_OTHER_FOLDER = "set PATCHCTL_CACHE to a folder of your own"
REFRESH = "`patchctl fetch --refresh` fetches it again"


@dataclass(frozen=True)
class Record:
    """What the cache knows of a base, kept as patchctl.json in its repository.

    For form sdist: `archive` (a file name beside the repository), its `sha256`, and `declared`, the generated files
    that the manifest named when the tree was made, since another list makes another tree.
    """

    upstream: str
    form: Form
    commit: ObjectId
    tree: ObjectId
    origin: str
    archive: str | None = None
    sha256: str | None = None
    declared: tuple[str, ...] = ()


def cache_root(environment: Mapping[str, str] = os.environ, configured: str | None = None) -> Path:
    """$PATCHCTL_CACHE, else what the user configured, else $XDG_CACHE_HOME/patchctl, else ~/.cache/patchctl.

    WrongUse when the first is a relative path.
    """
    own = environment.get("PATCHCTL_CACHE")
    if own:
        if not os.path.isabs(own):
            raise WrongUse(f"PATCHCTL_CACHE is not an absolute path: {own!r}")
        return Path(own)
    if configured:
        return Path(configured)
    shared = environment.get("XDG_CACHE_HOME", "")
    return (Path(shared) if os.path.isabs(shared) else Path.home() / ".cache") / "patchctl"


def git_place(root: Path, upstream: str, commit: str) -> Path:
    """Where the base of a commit lies."""
    return root / "git" / upstream / f"{commit}.git"


def sdist_place(root: Path, upstream: str, version: str, sha256: str) -> Path:
    """Where the base made from a source distribution lies."""
    return root / "sdist" / upstream / f"{version}-{sha256[:16]}.git"


def kept_archive(repo: Path) -> Path | None:
    """The archive beside an sdist base, or beside the place where one would be."""
    for suffix in (".tar.gz", ".zip"):
        archive = repo.with_name(repo.name.removesuffix(".git") + suffix)
        if archive.is_file():
            return archive
    return None


@contextmanager
def staging(root: Path) -> Iterator[Path]:
    """A new folder below <cache>/tmp, on the same file system as the places; gone when the block ends."""
    with staging_in(root, root / "tmp", "fetch-") as folder:
        yield folder


@contextmanager
def staging_in(root: Path, top: Path, prefix: str) -> Iterator[Path]:
    """A new folder in `top`, which lies in the cache; gone when the block ends, unless it was renamed to its place.

    Raises WrongUse when the cache cannot be written, or has no room. What killed runs left there is dropped after a day,
    which is longer than any run, so that no running one loses its folder.
    """
    try:
        folder = new_folder(top, prefix)
        sweep(top, prefix, _ABANDONED_SECONDS)
    except OSError as error:
        raise _unwritable(root, error) from error
    try:
        yield folder
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise MachineFailed(
                f"the cache has no room: {error.strerror}", where=str(root), hint=_OTHER_FOLDER
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise _unwritable(root, error) from error
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unwritable(root: Path, error: OSError) -> PatchctlError:
    return refusal(error, "the cache cannot be written", _OTHER_FOLDER, root)


def new_repository(folder: Path) -> Path:
    """An empty bare repository, written by hand: `git init` would copy templates, hooks among them."""
    (folder / "objects" / "pack").mkdir(parents=True)
    (folder / "refs" / "heads").mkdir(parents=True)
    (folder / "HEAD").write_text(f"ref: {_REF}\n", encoding="ascii")
    (folder / "config").write_text(REPOSITORY_CONFIG, encoding="ascii")
    return folder


def seal(repo: Path, record: Record) -> None:
    """Complete a repository that has its objects: the reference, and the record last."""
    for left in (repo / "objects" / "pack").glob("tmp_*"):
        left.unlink()  # git only warns when it cannot remove its own
    (repo / _REF).write_text(record.commit + "\n", encoding="ascii")
    (repo / RECORD).write_text(
        json.dumps({"schema": SCHEMA, **asdict(record)}, indent=1, sort_keys=True) + "\n", encoding="utf-8"
    )


def place(staged: Path, final: Path, *, replace: bool) -> None:
    """Move a sealed repository, or an archive, from the staging folder to its place.

    What is there already stays, unless `replace`: then it goes into the staging folder, and with that away.
    """
    make_folder(final.parent)
    if not staged.is_dir():
        os.replace(staged, final)
        return
    try:
        if replace:
            with contextlib.suppress(FileNotFoundError):
                os.rename(final, staged.with_name(staged.name + ".old"))
        os.rename(staged, final)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def read_record(repo: Path) -> Record | None:
    """What a base of the cache is; None when there is none. SourceMismatch when it is there and cannot be read."""
    path = repo / RECORD
    try:
        text = _record_text(path)
    except FileNotFoundError:
        raise SourceMismatch("the base has no record", where=str(path), hint=REFRESH) from None
    except PermissionError as error:
        raise refusal(error, "the cache cannot be read", _OTHER_FOLDER, path) from error
    except (OSError, UnicodeDecodeError) as error:
        raise SourceMismatch(f"the record cannot be read: {error}", where=str(path), hint=REFRESH) from error
    if text is None:
        return None
    try:
        return parse(Record, text, ("schema", SCHEMA))
    except BadRecord as error:
        raise SourceMismatch(f"the record is damaged: {error}", where=str(path), hint=REFRESH) from error


def _record_text(path: Path) -> str | None:
    """The record's file; None when there is no base. FileNotFoundError when there is one without it.

    Other runs put a base there whole, and take it away to renew it, at any moment: so it is asked for before its record is
    read, and one that went in between is looked for again.
    """
    if not path.parent.exists():
        return None
    with contextlib.suppress(FileNotFoundError):
        return path.read_text(encoding="utf-8")
    return path.read_text(encoding="utf-8") if path.parent.exists() else None


def entries(root: Path) -> list[tuple[Path, Record]]:
    """Every base in the cache with its record, in order of path."""
    found = []
    for form in FORMS:
        for repo in sorted((root / form).glob("*/*.git")):
            record = read_record(repo)
            if record is not None:
                found.append((repo, record))
    return found
