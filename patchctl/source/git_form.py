"""Form git: fetches exactly the pinned commit, from the mirrors, then from the manifest's remotes; and asks these places which commits versions,
tags and branches are, and which releases there are, for which nothing is fetched."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from patchctl.errors import SourceMismatch, Tried
from patchctl.git.fetch import fetch_commit, is_diverted, list_refs, proven_tree, take_pack
from patchctl.git.history import asked, git_dir, has_commit, refs_of
from patchctl.git.run import GitFailed
from patchctl.language import message
from patchctl.manifest.typeinfo import shape_of
from patchctl.manifest.types import Pin, Stack, Tag, Upstream
from patchctl.source import cache
from patchctl.source.cache import check_tree
from patchctl.source.intact import is_intact
from patchctl.source.places import (
    SourcePlace,
    has_proxy,
    known_unreachable,
    parse_place,
    remember_unreachable,
    why_unreachable,
)
from patchctl.source.types import Base, OfflineSources, SourceOptions
from patchctl.terminal.progress import Progress
from patchctl.terminal.text import one_line, visible_line

if TYPE_CHECKING:
    from packaging.version import Version


# Messages of git and ssh when a host does not answer, as opposed to refusing.
_NOBODY = (
    "could not resolve host",
    "couldn't resolve host",
    "connection refused",
    "connection timed out",
    "no route to host",
    "network is unreachable",
    "failed to connect",
    "temporary failure in name resolution",
    "name or service not known",
    "no answer for",
    "operation too slow",
    "unable to look up",
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
# git's own minimum for abbreviated ids.
_SHORT = re.compile(r"[0-9a-f]{7,39}")
_TAGS, _HEADS = "refs/tags/", "refs/heads/"


def fetch(
    name: str, upstream: Upstream, pin: Pin, options: SourceOptions, progress: Progress, tried: list[Tried]
) -> Base | None:
    """Fetch from the first place that has the commit, a bundle first. If none has, add to `tried` and return None."""
    if pin.commit is None:
        tried.append(Tried("git", message("the pin is a source distribution only and names no commit")))
        return None
    if options.bundle is not None:
        base = _from_bundle(options.bundle, name, pin, options, progress, tried)
        if base is not None:
            return base
    if not (options.mirrors.get(name) or upstream.git):
        tried.append(Tried("git", message("no remote in the manifest and no mirror given")))
    for place, reason in places_of(name, upstream, options):
        if reason:
            tried.append(Tried(place.shown, reason))
            continue
        with cache.staging(options.cache) as folder:
            try:
                return _fetch_from(place, name, pin, options, progress, folder)
            except GitFailed as failure:
                reason = one_line(said_by_git(failure))
        if any(sign in reason.lower() for sign in _NOBODY):
            remember_unreachable(place.host, reason)
        tried.append(Tried(place.shown, reason))
    return None


def _from_bundle(
    bundle: OfflineSources, name: str, pin: Pin, options: SourceOptions, progress: Progress, tried: list[Tried]
) -> Base | None:
    """Return the base from the bundle's pack, verified like a fetched one; None, with a reason, for another commit."""
    source = bundle.source(name, "git")
    shown = visible_line(message("bundle {path}", path=bundle.path))
    if source is None or source.commit != pin.commit:
        reason = message("not included in form {form}", form="git")
        if source is not None:
            reason = message("it has commit {commit}", commit=source.commit)
        tried.append(Tried(shown, reason))
        return None
    assert pin.commit is not None
    data = bundle.read(source.member)
    with cache.staging(options.cache) as folder:
        repo = cache.new_repository(folder / "base.git")
        progress.note(message("unpacking {name}", name=name))
        try:
            take_pack(repo, data, pin.commit)
            return _proven(repo, name, pin, options, shown, len(data))
        except GitFailed as failure:
            what = message(
                "{member} does not contain commit {commit}: {error}",
                member=source.member,
                commit=pin.commit,
                error=one_line(said_by_git(failure)),
            )
            raise SourceMismatch(what, where=str(bundle.path)) from failure


def why_skipped(place: SourcePlace, offline: bool) -> str | None:
    """Return why a place need not be asked for a commit, or None if git may try."""
    if place.local is not None:
        # os.path, since pathlib raises if a parent folder may not be entered
        if not os.path.isdir(place.local):
            return message("no such folder")
        is_bare = os.path.isfile(place.local / "HEAD") and os.path.isdir(place.local / "objects")
        return None if is_bare or os.path.exists(place.local / ".git") else message("not a git repository")
    if offline:
        return message("the run is offline")
    if place.host is not None and not is_diverted(place.address) and not has_proxy(place.address):
        return why_unreachable(place.host)
    return known_unreachable(place.host)


def places_of(name: str, upstream: Upstream, options: SourceOptions) -> Iterator[tuple[SourcePlace, str | None]]:
    """Yield every git place of an upstream in order, with the reason to skip it, if any."""
    for address in (*options.mirrors.get(name, ()), *upstream.git):
        place = parse_place(address)
        yield place, why_skipped(place, options.offline)


def _fetch_from(
    place: SourcePlace, name: str, pin: Pin, options: SourceOptions, progress: Progress, folder: Path
) -> Base:
    assert pin.commit is not None
    repo = cache.new_repository(folder / "base.git")
    received = 0

    def report(amount: int, step: str) -> None:
        nonlocal received
        if amount > received:
            progress.advance(amount - received)
            received = amount
        if step:
            progress.note(step)

    progress.start(f"{name}: git {place.shown}", None)
    try:
        fetch_commit(repo, place.address, place.shown, pin.commit, place.local, report)
        size = sum(pack.stat().st_size for pack in (repo / "objects" / "pack").glob("*.pack"))
        report(size, "")
        return _proven(repo, name, pin, options, place.shown, size)
    finally:
        progress.finish()


def _proven(repo: Path, name: str, pin: Pin, options: SourceOptions, origin: str, size: int) -> Base:
    """Verify commit and tree in `repo` and move it into the cache. Raises GitFailed."""
    assert pin.commit is not None
    tree = proven_tree(repo, pin.commit)
    check_tree(tree, pin, origin)
    cache.seal(repo, cache.BaseRecord(name, "git", pin.commit, tree, origin))
    final = cache.git_place(options.cache, name, pin.commit)
    cache.place(repo, final, replace=options.refresh and not is_intact(final, repo))
    return Base(name, "git", final, pin.commit, tree, origin, size)


def said_by_git(failure: GitFailed) -> str:
    """Return the telling lines of git's stderr: `fatal:`, `error:`, and what the server said."""
    lines = [line for line in failure.stderr.splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith(("fatal:", "error:", "remote:", "ssh:", "ERROR:"))]
    return "; ".join((telling or lines or [f"git exited with status {failure.status}"])[:3])


@dataclass(frozen=True)
class Revision:
    """A commit, the tag or branch that named it, the place that resolved it, and its `repo` if that is local."""

    commit: str
    tag: str | None
    branch: str | None
    origin: str
    repo: Path | None = None


def release_prefix(stack: Stack, upstream: Upstream) -> str:
    """Return the prefix of the version in an upstream's release names, as in core_v0.12.1."""
    pin = stack.pin
    of_archive = pin.commit is None and pin.sdist is not None and stack.name.endswith(pin.sdist.version)
    named = stack.name if of_archive else pin.tag  # `pin` names the stack of an archive like the tag it would have
    return re.split(r"\d", named)[0] if named else upstream.releases or "v"


def version_of(name: str, prefix: str) -> Version | None:
    """Return the version in a tag or version string, or None if it is not a release."""
    from packaging.version import InvalidVersion, Version

    text = name.removeprefix(prefix)
    try:
        return Version(text) if text[:1].isdigit() else None
    except InvalidVersion:
        return None


class Revisions:
    """The names of one upstream's revisions.

    Each place is asked at most once, and only if earlier ones had no answer; `tried` has the reasons.
    """

    def __init__(self, name: str, upstream: Upstream, prefix: str, options: SourceOptions) -> None:
        self.tried: list[Tried] = []
        self.prefix, self._branches = prefix, upstream.releases is not None
        self._answers: list[tuple[SourcePlace, Mapping[str, str]]] = []
        self._unasked = iter(places_of(name, upstream, options))

    def find(self, wanted: str) -> Revision | None:
        """Resolve `wanted` at the first place that knows it, or return None.

        Tags win over branches of the same name. A full id is accepted as given, by a local repository only if it has
        the commit; an abbreviated id must be unique.
        """
        for place, refs in self._asked():
            tags = {ref.removeprefix(_TAGS): oid for ref, oid in refs.items() if ref.startswith(_TAGS)}
            repo = _repository(place)
            if _COMMIT.fullmatch(wanted):
                if repo is None or has_commit(repo, wanted):
                    return Revision(wanted, self._tag_of(wanted, tags), None, place.shown, repo)
                self.tried.append(Tried(place.shown, f"no commit {wanted}"))
                continue
            for tag in dict.fromkeys((wanted, self.prefix + wanted)):
                if tag in tags:
                    return Revision(tags[tag], tag, None, place.shown, repo)
            if _HEADS + wanted in refs:
                return Revision(refs[_HEADS + wanted], None, wanted, place.shown, repo)
            if _SHORT.fullmatch(wanted) and (commit := _in_full(wanted, repo, refs)) is not None:
                return Revision(commit, self._tag_of(commit, tags), None, place.shown, repo)
            self.tried.append(Tried(place.shown, f"no tag or branch {wanted}{_like(wanted, tags)}{_ask(wanted)}"))
        return None

    def _tag_of(self, commit: str, tags: Mapping[str, str]) -> str | None:
        """The commit's tag that a manifest can name: that of the latest version, else the first."""
        own = sorted(tag for tag, oid in tags.items() if oid == commit and shape_of(Tag).takes_text(tag))
        versions = {tag: found for tag in own if (found := version_of(tag, self.prefix)) is not None}
        return max(versions, key=lambda tag: versions[tag]) if versions else next(iter(own), None)

    @property
    def answered(self) -> bool:
        """Whether a place has answered so far."""
        return bool(self._answers)

    def releases(self) -> dict[Version, tuple[str, str]]:
        """Return (name, commit) of every release by version, oldest first, from the first place that answers.

        Tags win over branches, which count as releases only if the upstream releases from branches.
        """
        found: dict[Version, tuple[str, str]] = {}
        _, refs = next(self._asked(), (None, {}))
        for kind in (_HEADS, _TAGS) if self._branches else (_TAGS,):
            for ref, oid in refs.items():
                name = ref.removeprefix(kind)
                if ref.startswith(kind + self.prefix) and (version := version_of(name, self.prefix)) is not None:
                    found[version] = name, oid
        return dict(sorted(found.items()))

    def _asked(self) -> Iterator[tuple[SourcePlace, Mapping[str, str]]]:
        """Yield the places that answer, with their refs."""
        yield from self._answers
        for place, reason in self._unasked:
            if reason is None:
                try:
                    self._answers.append((place, _names(place)))
                    yield self._answers[-1]
                    continue
                except GitFailed as failure:
                    reason = one_line(failure.stderr.strip()) or f"git exited with status {failure.status}"
            self.tried.append(Tried(place.shown, reason))


def _in_full(short: str, repo: Path | None, refs: Mapping[str, str]) -> str | None:
    """Complete an abbreviated id: to any commit of a local repository, else to that of a tag or branch."""
    if repo is None:
        found = {oid for oid in refs.values() if oid.startswith(short)}
        return found.pop() if len(found) == 1 else None
    command = ["rev-parse", "--verify", "--quiet", f"{short}^{{commit}}"]
    try:
        return asked(repo, command).decode().strip()
    except GitFailed:
        return None


def _ask(wanted: str) -> str:
    """Return what to do about an abbreviated id that no place could complete."""
    return ", nor a unique commit with this prefix: give all 40 digits" if _SHORT.fullmatch(wanted) else ""


def _repository(place: SourcePlace) -> Path | None:
    """Return the repository of a local place."""
    repo = git_dir(place.local) if place.local is not None else None
    return repo if repo is not None and (repo / "objects").is_dir() else None


def _names(place: SourcePlace) -> dict[str, str]:
    """Return a place's tags and branches; of a local clone also its remote-tracking branches."""
    found = list_refs(place.address, place.shown, place.local)
    if (repo := _repository(place)) is not None:
        for name, oid in refs_of(repo).items():
            if _TAGS + name not in found:
                found.setdefault(_HEADS + name, oid)
    return found


def _like(wanted: str, tags: Iterable[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(wanted, tags, 3)
    return f"; similar: {', '.join(near)}" if near else ""
