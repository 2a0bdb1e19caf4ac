"""Fetches a distribution at one commit into the user's data folder and makes it the default; and finds the commit of one.

patchctl.manifest.default_roots has the layout, and finds what was chosen. A fetched distribution is complete and never changes:
its commit is its name, every object was verified against it, and choosing it again asks nobody.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from patchctl.atomic import make_folder, new_folder, replace_file
from patchctl.errors import PatchctlError, SourceMismatch, SourceUnavailable, Tried, WrongUse
from patchctl.git.catfile import ObjectReader
from patchctl.git.fetch import fetch_commit, list_refs, proven_tree
from patchctl.git.history import head_commit
from patchctl.git.objects import EXECUTABLE, GITLINK, SYMLINK
from patchctl.git.run import GitFailed
from patchctl.manifest.default_roots import (
    MARKER,
    SCHEMA,
    Used,
    data_folder,
    files_of,
    installed_commit,
    own_root,
    place_of,
    used,
    used_at,
)
from patchctl.manifest.distribution import Distribution
from patchctl.os_errors import as_user_error
from patchctl.patch.names import GIT_OWN, path_text, why_refused
from patchctl.source.cache import new_repository
from patchctl.source.git_form import said_by_git, why_skipped
from patchctl.source.places import SourcePlace, parse_place
from patchctl.terminal.progress import Progress
from patchctl.terminal.text import one_line


def commit_of(root: Path) -> str | None:
    """Return the commit of the distribution at `root`, or None if it is in no repository."""
    there = used_at(root)
    if there is not None:
        return there.commit
    return installed_commit() if root == own_root() else head_commit(root)


_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHORT = re.compile(r"[0-9a-f]{7,40}")


@dataclass(frozen=True)
class Chosen:
    """The distribution that is the default now, where its files are, and whether this run fetched it."""

    used: Used
    root: Path
    fetched: bool


def use(target: str, progress: Progress) -> Chosen:
    """Make URL, URL@REV or the id of a fetched commit the default distribution. Without REV it is the remote's HEAD.

    Raises SourceUnavailable if the address or the revision cannot be had, WrongUse if there is no distribution, and InvalidManifest
    for one that is broken; the default then stays.
    """
    data = _data()
    there = _fetched(data, target)
    if there is not None:
        return _choose(data, there, fetched=False)
    address, revision = split_revision(target)
    place = parse_place(address)
    if (why := why_skipped(place, offline=False)) is not None:
        raise _unavailable(place, why)
    try:
        commit = _resolve(place, revision)
        if commit in used(data):
            return _choose(data, used(data)[commit], fetched=False)
        return _choose(data, _fetch(data, place, revision, commit, progress), fetched=True)
    except GitFailed as failure:
        raise _unavailable(place, one_line(said_by_git(failure))) from failure


def split_revision(target: str) -> tuple[str, str | None]:
    """Split URL@REV at its last @, as pip does. The @ of a user's name before the host is none."""
    target = target.removeprefix("git+")
    if os.path.isdir(os.path.expanduser(target)):
        return target, None
    host, found, path = target.partition("://")
    start = len(host) + 3 + path.find("/") if found else target.find(":") + 1
    address, at, revision = target[start:].rpartition("@")
    if not at or not revision:
        return target, None
    return target[:start] + address, revision


def forget_default() -> None:
    """Make the wheel's own distribution the default again. Fetched ones stay, for `use COMMIT`."""
    (_data() / "default").unlink(missing_ok=True)


def fetched() -> list[tuple[Used, Path]]:
    """Return every fetched distribution, sorted by commit, with the folder of its files."""
    data = _data()
    return [(one, files_of(data, commit)) for commit, one in used(data).items()]


def _data() -> Path:
    data = data_folder()
    if data is None:
        raise WrongUse("there is no home directory to keep distributions in", hint="set HOME or XDG_DATA_HOME")
    return data


def _fetched(data: Path, target: str) -> Used | None:
    """Return the fetched distribution that an id, or an address at a full id, names."""
    address, revision = (None, target) if _SHORT.fullmatch(target) else split_revision(target)
    if revision is None or not (_COMMIT.fullmatch(revision) or (address is None and _SHORT.fullmatch(revision))):
        return None
    found = [one for commit, one in used(data).items() if commit.startswith(revision)]
    if len(found) != 1 and address is None:
        raise WrongUse(
            f"{len(found)} fetched distributions have an id that begins with {target}",
            hint="`patchctl use --list` lists them",
        )
    return found[0] if found else None


def _resolve(place: SourcePlace, revision: str | None) -> str:
    """Return the commit of a tag, branch or id; tags win. Raises SourceUnavailable with similar names."""
    if revision is not None and _COMMIT.fullmatch(revision):
        return revision
    refs = list_refs(place.address, place.shown, place.local, head=revision is None)
    names = ("HEAD",) if revision is None else (f"refs/tags/{revision}", f"refs/heads/{revision}")
    found = next((refs[name] for name in names if name in refs), None)
    if found is None and revision is not None and _SHORT.fullmatch(revision):
        ids = {oid for oid in refs.values() if oid.startswith(revision)}
        found = ids.pop() if len(ids) == 1 else None
    if found is None:
        from difflib import get_close_matches

        known = [ref.removeprefix("refs/tags/").removeprefix("refs/heads/") for ref in refs]
        near = get_close_matches(revision or "", known, 3)
        like = f"; similar: {', '.join(near)}" if near else ""
        raise _unavailable(place, f"no tag or branch {revision}{like}" if revision else "it has no commit")
    return found


def _fetch(data: Path, place: SourcePlace, revision: str | None, commit: str, progress: Progress) -> Used:
    """Fetch the commit, write its files, and move them to their place once they are a valid distribution."""
    try:
        staged = new_folder(data, "fetch-")
    except OSError as error:
        raise as_user_error(error, "the data folder cannot be written", "set XDG_DATA_HOME", data) from error
    try:
        repo = new_repository(staged / "repository.git")
        progress.start(f"git {place.shown}", None)
        try:
            fetch_commit(
                repo, place.address, place.shown, commit, place.local, lambda amount, step: progress.note(step)
            )
            tree = proven_tree(repo, commit)
        finally:
            progress.finish()
        made = staged / commit
        _write_files(repo, tree, made / "files")
        _check(made / "files", place)
        found = Used(place.shown, revision, commit, tree)
        record = {SCHEMA[0]: SCHEMA[1], **asdict(found)}
        (made / "use.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        make_folder(place_of(data, commit).parent)
        shutil.rmtree(place_of(data, commit), ignore_errors=True)  # without a record: left by hand
        os.rename(made, place_of(data, commit))
        return found
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _write_files(repo: Path, tree: str, folder: Path) -> None:
    """Write the files of a tree, read-only. Links, submodules and git's own files are left out: no distribution needs them."""
    with ObjectReader(repo) as reader:
        entries = {
            path: entry
            for path, entry in reader.files(tree).items()
            if entry.mode not in (SYMLINK, GITLINK) and path.rpartition(b"/")[2] not in GIT_OWN
        }
        for path, (_, data) in zip(entries, reader.read_many(e.id for e in entries.values()), strict=True):
            if (reason := why_refused(path)) is not None:
                raise SourceMismatch(f"the repository has a file that is not written: {path_text(path)}: {reason}")
            file = folder / os.fsdecode(path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            file.chmod(0o555 if entries[path].mode == EXECUTABLE else 0o444)


def _check(root: Path, place: SourcePlace) -> None:
    if not (root / MARKER).is_file():
        hint = "name a repository with manifests/ and patches/ at its top"
        raise WrongUse(f"{place.shown} is no distribution: it has no {MARKER}", hint=hint)
    Distribution.load(root)


def _choose(data: Path, found: Used, *, fetched: bool) -> Chosen:
    """Make a fetched distribution the default."""
    replace_file(data / "default", f"{found.commit}\n".encode("ascii"))
    return Chosen(found, files_of(data, found.commit), fetched)


def _unavailable(place: SourcePlace, why: str) -> PatchctlError:
    return SourceUnavailable(f"cannot fetch a distribution from {place.shown}", [Tried(place.shown, why)])
