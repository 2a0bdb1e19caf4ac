"""Reads other revisions of an upstream, for drift and rebase; nothing is applied.

Tags, branches and commits of a mirror are read in place. Of versions on the package index, the cache keeps the full
file list and the content of relevant files.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchctl.atomic import replace_file
from patchctl.errors import SourceUnavailable, Tried
from patchctl.git.catfile import ObjectReader
from patchctl.git.history import descends
from patchctl.git.objects import FOLDER, GITLINK, Files, TreeEntry, parse_tree
from patchctl.manifest.types import Pin, Sdist, Stack, Upstream
from patchctl.source import cache
from patchctl.source.archive import is_generated, read_archive
from patchctl.source.config import archive_limits
from patchctl.source.git_form import Revisions, release_prefix, version_of
from patchctl.source.obtain import obtain, obtain_form
from patchctl.source.sdist import write_commit
from patchctl.source.types import SourceOptions
from patchctl.terminal.progress import Progress
from patchctl.terminal.text import one_line

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    from patchctl.source.package_index import Offered

LATEST = "latest"


@dataclass(frozen=True)
class UpstreamRelease:
    """One revision. In form sdist the commit is made by patchctl, and `repo` lacks some of its blobs.

    `history` says whether its ancestors are there.
    """

    name: str
    form: str
    commit: str
    tree: str
    repo: Path
    history: bool = False
    sha256: str | None = None


@dataclass(frozen=True)
class Newest:
    """Names of the newest revisions by kind (release, candidate, branch); `archived`: those that no repository has;
    `hidden` by name: the Pythons of those that do not run on the Python asked for."""

    by_kind: Mapping[str, str]
    archived: Collection[str]
    hidden: Mapping[str, str]


@dataclass
class IndexAnswer:
    """What the package index offered in this run, None if it was not asked yet, and the places tried in vain."""

    offered: list[Offered] | None = None
    tried: list[Tried] = field(default_factory=list)


class RevisionTree:
    """The files of one tree. Reads only the folders and files asked for."""

    def __init__(self, reader: ObjectReader, tree: str) -> None:
        self._reader, self._tree = reader, tree
        self._folders: dict[str, dict[bytes, TreeEntry]] = {}

    def entry(self, path: bytes) -> TreeEntry | None:
        """Return the entry at a path if it is a file."""
        oid = self._tree
        *above, name = path.split(b"/")
        for part in above:
            inner = self._folder(oid).get(part)
            if inner is None or inner.mode != FOLDER:
                return None
            oid = inner.id
        found = self._folder(oid).get(name)
        return None if found is None or found.mode == FOLDER else found

    def read(self, path: bytes) -> bytes | None:
        """Return a file's content; None if there is no such file, or the cache keeps it of no archive. Raises SourceUnavailable
        for a clone that was made without it."""
        entry = self.entry(path)
        if entry is None or entry.mode == GITLINK:
            return None
        if not self._reader.holds(entry.id):
            if next((self._reader.repo / "objects" / "pack").glob("*.promisor"), None) is not None:
                tried = [Tried(str(self._reader.repo), "it is a partial clone")]
                raise SourceUnavailable(
                    f"{os.fsdecode(path)} cannot be had",
                    tried,
                    hint="clone it whole, without --filter; or name another place with --mirror",
                )
            return None
        return self._reader.read(entry.id)[1]

    def text(self, path: str) -> bytes | None:
        """Like `read`, for a str path."""
        return self.read(path.encode("utf-8", "surrogateescape"))

    @cached_property
    def files(self) -> Files:
        """All files."""
        return self._reader.files(self._tree)

    def _folder(self, oid: str) -> dict[bytes, TreeEntry]:
        if oid not in self._folders:
            self._folders[oid] = dict(parse_tree(self._reader.read(oid)[1]))
        return self._folders[oid]


def wanted_files(paths: Iterable[bytes]) -> frozenset[bytes]:
    """Return the names of files to keep from a source distribution besides Python files: those that patches touch."""
    return frozenset(path.rpartition(b"/")[2] for path in paths)


class UpstreamReleases:
    """The revisions of one upstream, from the places of its sources."""

    def __init__(
        self,
        stack: Stack,
        upstream: Upstream,
        options: SourceOptions,
        progress: Progress,
        wanted: frozenset[bytes],
        answer: IndexAnswer | None = None,
    ) -> None:
        self._stack, self._upstream, self._options, self._progress = stack, upstream, options, progress
        self._name, self._wanted = stack.upstream, wanted
        self._prefix = release_prefix(stack, upstream)
        here = replace(options, offline=True)  # local mirrors are read before anything is asked over the network
        self._here = Revisions(self._name, upstream, self._prefix, here)
        self._anywhere = Revisions(self._name, upstream, self._prefix, options)
        self._answer = answer or IndexAnswer()  # stacks of one upstream share it
        self._index_tried = self._answer.tried

    def base(self) -> UpstreamRelease:
        """Return the stack's pin. Raises SourceUnavailable."""
        pin = self._stack.pin
        found = self._here.find(pin.commit) if pin.commit and self._options.source != "sdist" else None
        if found is not None and found.repo is not None:
            return self._of_repository(self._stack.name, found.repo, found.commit)
        base = obtain(self._upstream, self._stack, self._options, self._progress)
        self._progress.finish()
        sha256 = pin.sdist.sha256 if base.form == "sdist" and pin.sdist else None
        return UpstreamRelease(self._stack.name, base.form, base.commit, base.tree, base.repo, sha256=sha256)

    def named(self, names: Sequence[str]) -> list[UpstreamRelease]:
        """Resolve tags, branches, full commit ids, index versions or `latest`. Raises SourceUnavailable."""
        return [self._find(self._newest() if name == LATEST else name) for name in names]

    def newer(self) -> list[UpstreamRelease]:
        """Return every release and index version newer than the pin, oldest first.

        Includes the pin's own branch if it has moved on. Skips nightly builds: the index has 300 of Megatron-LM
        0.16.0rc0.
        """
        return [self._find(self._names[v]) for v in self._later]

    def newest(self, python: str | None) -> Newest:
        """Return the newest of what is newer than the pin, by kind. Downloads nothing. Raises SourceUnavailable.

        A version of the index that does not run on `python` ("3.11") is none of these.
        """
        if not self._names and not self._anywhere.answered:
            raise self._unavailable(LATEST)
        new = [v for v in self._later if v != self._own]
        run = [v for v in new if python is None or self._pythons[v].contains(python)]
        by_kind = {
            "release": [v for v in run if not v.is_prerelease][-1:],
            "candidate": [v for v in run[-1:] if v.is_prerelease],
            "branch": [v for v in self._later if v == self._own],
        }
        hidden = {self._names[v]: str(self._pythons[v]) for v in new if v not in run}
        archived = {self._names[v] for v in new if v not in self._tagged}
        return Newest({kind: self._names[v] for kind, found in by_kind.items() for v in found}, archived, hidden)

    def is_newer(self, name: str) -> bool:
        """Whether a name is that of a release with a later version than the pin's."""
        version = version_of(name, self._prefix)
        return version is not None and self._own is not None and version > self._own

    def is_older(self, name: str) -> bool:
        """Whether a name is that of a release with an earlier version than the pin's."""
        version = version_of(name, self._prefix)
        return version is not None and self._own is not None and version < self._own

    @property
    def tried(self) -> list[Tried]:
        """The places of repositories that were tried in vain."""
        return self._anywhere.tried

    def commit_of(self, name: str) -> str | None:
        """Return the commit of a tag or branch, or None if no place has it. Fetches nothing."""
        found = self._anywhere.find(name)
        return found.commit if found else None

    @cached_property
    def _own(self) -> Version | None:
        """The version in the pin's name."""
        pin = self._stack.pin
        named = [pin.tag, self._stack.name, pin.sdist.version if pin.sdist else None]
        return next((v for name in named if name and (v := version_of(name, self._prefix)) is not None), None)

    @cached_property
    def _later(self) -> list[Version]:
        """The versions that are newer than the pin, oldest first; its own if the pin's branch has moved on."""
        own, final = self._own, sorted(v for v in self._names if not v.is_devrelease)
        if own is None:
            return self._after_the_pin(final)
        return [v for v in final if v > own or (v == own and self._has_moved(v))]

    @cached_property
    def _pythons(self) -> Mapping[Version, SpecifierSet]:
        """The Pythons that a version runs on, as far as the index says."""
        from packaging.specifiers import InvalidSpecifier, SpecifierSet

        found: defaultdict[Version, SpecifierSet] = defaultdict(SpecifierSet)
        for one in self._offered if self._options.source != "git" else []:
            if one.python and (version := version_of(one.sdist.version, "")) is not None:
                with contextlib.suppress(InvalidSpecifier):
                    found[version] = SpecifierSet(one.python)
        return found

    def _has_moved(self, version: Version) -> bool:
        """Whether the pin is on the branch of this release, but no longer its head."""
        pin = self._stack.pin
        _, commit = self._tagged.get(version, (None, pin.commit))
        return pin.commit is not None and pin.tag is None and commit != pin.commit

    def _after_the_pin(self, versions: Sequence[Version]) -> list[Version]:
        """Return the releases that descend from a pin whose name has no version; without history, the newest."""
        pin = self._stack.pin.commit
        found = self._here.find(pin) if pin else None
        if pin is None or found is None or found.repo is None:
            return [v for v in versions if self._names[v] == self._newest()]
        heads = [(v, self._tagged[v][1]) for v in versions if v in self._tagged]
        return [v for v, commit in heads if commit != pin and descends(found.repo, commit, pin)]

    def _newest(self) -> str:
        """Return the newest final version, or the newest of all if there is no final one."""
        if not self._names:
            raise self._unavailable(LATEST)
        return self._names[max([v for v in self._names if not v.is_prerelease] or self._names)]

    @cached_property
    def _names(self) -> dict[Version, str]:
        """Names by version, from the index and the tags. Tags win, since git has every file."""
        offered = self._offered if self._options.source != "git" else []
        found = {v: name for name in (o.sdist.version for o in offered) if (v := version_of(name, "")) is not None}
        return found | {version: name for version, (name, _) in self._tagged.items()}

    @cached_property
    def _tagged(self) -> dict[Version, tuple[str, str]]:
        return self._anywhere.releases() if self._options.source != "sdist" else {}

    def _find(self, name: str) -> UpstreamRelease:
        form = self._options.source
        if form != "sdist" and (found := self._here.find(name)) is not None and found.repo is not None:
            return self._of_repository(name, found.repo, found.commit)
        if form != "git" and (kept := self._kept(name)) is not None:
            return kept
        if form != "sdist" and (found := self._anywhere.find(name)) is not None:
            return self._fetched(name, found.commit)
        offered = [] if form == "git" else [o.sdist for o in self._offered if self._same(o.sdist.version, name)]
        if not offered:
            raise self._unavailable(name)
        return self._downloaded(name, offered[0])

    def _same(self, version: object, name: str) -> bool:
        ours = version_of(str(version), "")
        return ours is not None and ours == version_of(name, self._prefix)

    def _unavailable(self, name: str) -> SourceUnavailable:
        asked = [*self._anywhere.tried, *self._index_tried]
        tried = list(dict.fromkeys(asked)) or [Tried(f"cache {self._options.cache}", "not there")]
        adds = f"--mirror {self._name}=URL adds a git repository"
        hint = adds if name == LATEST else f"name a tag, a branch, a full commit id or a version; {adds}"
        return SourceUnavailable(f"{self._name}: no place has {one_line(name)}", tried, hint=hint)

    # git

    def _of_repository(self, name: str, repo: Path, commit: str) -> UpstreamRelease:
        with ObjectReader(repo) as reader:
            tree = reader.read(commit)[1][5:45].decode("ascii")
        return UpstreamRelease(name, "git", commit, tree, repo, history=True)

    def _fetched(self, name: str, commit: str) -> UpstreamRelease:
        stack = replace(self._stack, pin=Pin(commit))
        base = obtain_form("git", self._upstream, stack, self._options, self._progress)
        self._progress.finish()
        return UpstreamRelease(name, "git", base.commit, base.tree, base.repo)

    # the package index

    @cached_property
    def _offered(self) -> list[Offered]:
        """What the index offers; offline what it offered when it was last asked."""
        from patchctl.source.package_index import Offered, versions

        if self._upstream.sdist is None:
            self._index_tried.append(Tried("package index", "it has none"))
            return []
        note = self._options.cache / "drift" / "index" / f"{self._name}.json"
        if self._options.offline:
            self._index_tried.append(Tried("package index", "offline"))
            known = (_json(note) or {}).get("offered", [])
            return [Offered(Sdist(version, sha256), python) for version, sha256, python in known]
        if self._answer.offered is not None:
            return self._answer.offered
        self._progress.note(f"asking for versions of {self._upstream.sdist}")
        found = self._answer.offered = versions(self._upstream.sdist, self._index_tried)
        with contextlib.suppress(OSError):
            rows = [(one.sdist.version, one.sdist.sha256, one.python) for one in found]
            replace_file(note, json.dumps({"offered": rows}).encode())
        return found

    def _folder(self) -> Path:
        return self._options.cache / "drift" / "sdist" / self._name

    def _kept(self, name: str) -> UpstreamRelease | None:
        for note in sorted(self._folder().glob(f"*-{self._without}.git/release.json")):
            data = _json(note)
            if not data or data.get("companions") != self._companions:
                continue
            if self._same(data["version"], name) and self._wanted <= _names_in(data["kept"]):
                return UpstreamRelease(name, "sdist", data["commit"], data["tree"], note.parent, sha256=data["sha256"])
        return None

    @cached_property
    def _without(self) -> str:
        """A digest of the stack's list of generated files: another list gives another tree."""
        paths = sorted(g.path for g in self._stack.generated)
        return hashlib.sha256("\0".join(paths).encode()).hexdigest()[:8]

    def _downloaded(self, name: str, sdist: Sdist) -> UpstreamRelease:
        from patchctl.source.package_index import download

        assert self._upstream.sdist is not None
        if self._options.offline:  # what the index offered is remembered; the archive is not here
            raise self._unavailable(name)
        final = self._folder() / f"{sdist.version}-{sdist.sha256[:16]}-{self._without}.git"
        # Keep what other stacks wanted, or two stacks would evict each other's files and download anew each time.
        self._wanted |= _names_in((_json(final / "release.json") or {}).get("kept", []))
        with cache.staging(self._options.cache) as folder:
            found = download(self._upstream.sdist, sdist, folder, self._progress, self._index_tried)
            if found is None:
                raise self._unavailable(name)
            self._progress.start(f"reading {self._name} {sdist.version}", None)
            generated = {g.path.encode() for g in self._stack.generated}
            archived = read_archive(found.path, sdist.sha256, archive_limits())
            repo = cache.new_repository(folder / "release.git")
            files = (f for f in archived if not is_generated(f, generated))
            commit, tree = write_commit(repo, files, f"{self._name} {sdist.version}", sdist, self._matters)
            kept = sorted(name.decode("utf-8", "surrogateescape") for name in self._wanted)
            data: dict[str, Any] = {"version": sdist.version, "sha256": sdist.sha256, "commit": commit, "tree": tree}
            data |= {"kept": kept, "companions": self._companions}
            (repo / "release.json").write_text(json.dumps(data), encoding="utf-8")
            cache.place(repo, final, replace=True)
            self._progress.finish()
            return UpstreamRelease(name, "sdist", commit, tree, final, sha256=sdist.sha256)

    def _matters(self, path: bytes) -> bool:
        """Return whether the content of a file is kept besides its name."""
        if path.endswith(b".py") or path.rpartition(b"/")[2] in self._wanted:
            return True
        return self._companions is not None and bool(re.fullmatch(self._companions, path.decode("utf-8", "replace")))

    @property
    def _companions(self) -> str | None:
        """The files that name revisions of other upstreams, an expression."""
        return self._upstream.companions.file if self._upstream.companions else None


def _names_in(kept: Iterable[str]) -> frozenset[bytes]:
    return frozenset(name.encode("utf-8", "surrogateescape") for name in kept)


def _json(file: Path) -> dict[str, Any] | None:
    try:
        data = json.loads(file.read_bytes())
        return data if isinstance(data, dict) else None
    except (OSError, ValueError):
        return None
