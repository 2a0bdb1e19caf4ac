"""The cache on disk.

    <cache>/git/<upstream>/<commit>.git                        form git
    <cache>/sdist/<upstream>/<version>-<sha256[:16]>.git       form sdist
    <cache>/sdist/<upstream>/<version>-<sha256[:16]>.tar.gz    the archive it was made from
    <cache>/tmp/                                               what is being written

Everything is written below tmp/ and renamed into place. No lock is needed: two runs that fetch the same thing write
the same bytes, and the second one discards its copy.

Looks up bases in the cache, without importing what fetches them.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from patchctl.atomic import make_folder, new_folder, sweep
from patchctl.errors import BadManifest, MachineFailed, PatchctlError, SourceMismatch, WrongUse
from patchctl.language import message
from patchctl.manifest.default_roots import user_folder
from patchctl.manifest.typeinfo import BadRecord, parse
from patchctl.manifest.types import ObjectId, Pin, Sdist, Stack, Upstream
from patchctl.os_errors import as_user_error, os_reason
from patchctl.source.types import FORMS, Base, Form


def cached_git(name: str, pin: Pin, root: Path) -> Base | None:
    """Return the pin's base in the cache, or None. Raises SourceMismatch if it is not the pinned one."""
    if pin.commit is None:
        return None
    repo = git_place(root, name, pin.commit)
    record = read_record(repo)
    if record is None:
        return None
    if record.commit != pin.commit:
        raise SourceMismatch(
            message("the record names commit {commit}", commit=record.commit), where=str(repo), hint=REFRESH
        )
    check_tree(record.tree, pin, str(repo))
    return Base(name, "git", repo, record.commit, record.tree, record.origin, 0)


def cached_sdist(name: str, upstream: Upstream, stack: Stack, root: Path) -> Base | None:
    """Return the base of the pin's archive in the cache, or None; also None if other files are declared now."""
    sdist = stack.pin.sdist
    if sdist is None or upstream.sdist is None:
        return None
    repo = sdist_place(root, name, sdist)
    record = read_record(repo)
    if record is None or kept_archive(repo) is None:
        return None
    if record.sha256 != sdist.sha256:
        raise SourceMismatch(
            message(
                "the record names sha256 {digest}, but {pinned} is pinned", digest=record.sha256, pinned=sdist.sha256
            ),
            where=str(repo),
            hint=REFRESH,
        )
    if {g.path for g in stack.generated} != set(record.declared):
        return None
    return Base(name, "sdist", repo, record.commit, record.tree, record.origin, 0)


def check_tree(tree: str, pin: Pin, where: str) -> None:
    """Raise SourceMismatch if another tree is pinned."""
    if pin.tree is not None and tree != pin.tree:
        raise SourceMismatch(
            message(
                "commit {commit} has tree {tree}, but {pinned} is pinned", commit=pin.commit, tree=tree, pinned=pin.tree
            ),
            where=where,
            hint=message("the manifest's commit and tree do not belong together: correct the pin"),
        )


REPOSITORY_CONFIG = "[core]\n\trepositoryformatversion = 0\n\tbare = true\n"
RECORD = "patchctl.json"
SCHEMA = 1
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.!+_-]*")
_REF = "refs/heads/base"
_ABANDONED_SECONDS = 24 * 3600.0
_OTHER_FOLDER = message("set PATCHCTL_CACHE to a folder of your own")
REFRESH = message("`patchctl fetch --refresh` fetches it again")


@dataclass(frozen=True)
class BaseRecord:
    """What the cache knows about a base, stored as patchctl.json in its repository.

    In form sdist: `archive` (a file name next to the repository), its `sha256`, and `declared`, the generated files
    that the manifest listed when the tree was made, since another list gives another tree.
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
    """Return $PATCHCTL_CACHE, else the configured folder, else $XDG_CACHE_HOME/patchctl, else ~/.cache/patchctl.

    Raises WrongUse if PATCHCTL_CACHE is a relative path.
    """
    own = environment.get("PATCHCTL_CACHE")
    if own:
        if not os.path.isabs(own):
            raise WrongUse(message("PATCHCTL_CACHE is not an absolute path: {path}", path=repr(own)))
        return Path(own)
    if configured:
        return Path(configured)
    folder = user_folder("XDG_CACHE_HOME", "~/.cache", environment)
    if folder is None:
        raise WrongUse(message("there is no home directory for the cache"), hint=message("set PATCHCTL_CACHE, or HOME"))
    return folder


def git_place(root: Path, upstream: str, commit: str) -> Path:
    """Return the path of a commit's base."""
    return root / "git" / upstream / f"{commit}.git"


def sdist_place(root: Path, upstream: str, sdist: Sdist) -> Path:
    """Return the path of the base made from a source distribution. Raises BadManifest."""
    if _VERSION.fullmatch(sdist.version) is None:
        raise BadManifest(f"{sdist.version!r} is not a version of a source distribution (upstream {upstream})")
    return root / "sdist" / upstream / f"{sdist.version}-{sdist.sha256[:16]}.git"


def kept_archive(repo: Path) -> Path | None:
    """Return the archive next to an sdist base (which itself need not exist), or None."""
    for suffix in (".tar.gz", ".zip"):
        archive = repo.with_name(repo.name.removesuffix(".git") + suffix)
        if archive.is_file():
            return archive
    return None


@contextmanager
def staging(root: Path) -> Iterator[Path]:
    """Yield a new folder below <cache>/tmp, on the cache's file system; removed afterwards."""
    with staging_in(root, root / "tmp", "fetch-") as folder:
        yield folder


@contextmanager
def staging_in(root: Path, top: Path, prefix: str) -> Iterator[Path]:
    """Yield a new folder in `top`, inside the cache; removed afterwards unless it was renamed.

    Raises WrongUse if the cache cannot be written, MachineFailed if it is full. Leftovers of killed runs are removed
    after a day, longer than any run takes.
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
                message("the cache is full: {error}", error=os_reason(error)), where=str(root), hint=_OTHER_FOLDER
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise _unwritable(root, error) from error
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unwritable(root: Path, error: OSError) -> PatchctlError:
    return as_user_error(error, message("the cache cannot be written"), _OTHER_FOLDER, root)


def new_repository(folder: Path) -> Path:
    """Create an empty bare repository by hand: `git init` would copy templates, including hooks."""
    (folder / "objects" / "pack").mkdir(parents=True)
    (folder / "refs" / "heads").mkdir(parents=True)
    (folder / "HEAD").write_text(f"ref: {_REF}\n", encoding="ascii")
    (folder / "config").write_text(REPOSITORY_CONFIG, encoding="ascii")
    return folder


def seal(repo: Path, record: BaseRecord) -> None:
    """Finish a repository that has its objects: write the ref and, last, the record."""
    for left in (repo / "objects" / "pack").glob("tmp_*"):
        left.unlink()  # git only warns if it cannot remove its own
    (repo / _REF).write_text(record.commit + "\n", encoding="ascii")
    (repo / RECORD).write_text(
        json.dumps({"schema": SCHEMA, **asdict(record)}, indent=1, sort_keys=True) + "\n", encoding="utf-8"
    )


def place(staged: Path, final: Path, *, replace: bool) -> None:
    """Move a sealed repository or an archive from staging to its place.

    An existing repository stays unless `replace`, which moves it into the staging folder, to be removed with it.
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


def read_record(repo: Path) -> BaseRecord | None:
    """Return the record of a base, or None if there is no base. Raises SourceMismatch if it is unreadable."""
    path = repo / RECORD
    try:
        text = _record_text(path)
    except FileNotFoundError:
        raise SourceMismatch(message("the base has no record"), where=str(path), hint=REFRESH) from None
    except PermissionError as error:
        raise as_user_error(error, message("the cache cannot be read"), _OTHER_FOLDER, path) from error
    except (OSError, UnicodeDecodeError) as error:
        raise SourceMismatch(
            message("cannot read the record: {error}", error=error), where=str(path), hint=REFRESH
        ) from error
    if text is None:
        return None
    try:
        return parse(BaseRecord, text, ("schema", SCHEMA))
    except BadRecord as error:
        raise SourceMismatch(
            message("the record is damaged: {error}", error=error), where=str(path), hint=REFRESH
        ) from error


def _record_text(path: Path) -> str | None:
    """Return the record's text, or None if there is no base. Raises FileNotFoundError if a base has none.

    Other runs may move a base in or away at any moment: the base is looked for before its record, and again if the
    record was missing.
    """
    if not path.parent.exists():
        return None
    with contextlib.suppress(FileNotFoundError):
        return path.read_text(encoding="utf-8")
    return path.read_text(encoding="utf-8") if path.parent.exists() else None


def entries(root: Path) -> list[tuple[Path, BaseRecord]]:
    """Return every base in the cache with its record, sorted by path."""
    found = []
    for form in FORMS:
        for repo in sorted((root / form).glob("*/*.git")):
            record = read_record(repo)
            if record is not None:
                found.append((repo, record))
    return found
