"""Resolves versions, tags, branches and ids to commits, and lists releases, by asking an upstream's places.

Fetches nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from patchctl.errors import Tried
from patchctl.git.fetch import list_refs
from patchctl.git.history import git_dir, has_commit, refs_of, trusting
from patchctl.git.run import GitFailed, run_git
from patchctl.manifest.types import Stack, Upstream
from patchctl.source.git_form import places_of
from patchctl.source.places import SourcePlace
from patchctl.source.types import SourceOptions
from patchctl.terminal.text import one_line

if TYPE_CHECKING:
    from packaging.version import Version

_COMMIT = re.compile(r"[0-9a-f]{40}")
# git's own minimum for abbreviated ids.
_SHORT = re.compile(r"[0-9a-f]{7,39}")
_TAGS, _HEADS = "refs/tags/", "refs/heads/"


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
                    tag = next((t for t, oid in sorted(tags.items()) if oid == wanted), None)
                    return Revision(wanted, tag, None, place.shown, repo)
                self.tried.append(Tried(place.shown, f"no commit {wanted}"))
                continue
            for tag in dict.fromkeys((wanted, self.prefix + wanted)):
                if tag in tags:
                    return Revision(tags[tag], tag, None, place.shown, repo)
            if _HEADS + wanted in refs:
                return Revision(refs[_HEADS + wanted], None, wanted, place.shown, repo)
            if _SHORT.fullmatch(wanted) and (commit := _in_full(wanted, repo, refs)) is not None:
                tag = next((t for t, oid in sorted(tags.items()) if oid == commit), None)
                return Revision(commit, tag, None, place.shown, repo)
            self.tried.append(Tried(place.shown, f"no tag or branch {wanted}{_like(wanted, tags)}{_ask(wanted)}"))
        return None

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
        return run_git(command, repo=repo, config=trusting(repo)).decode().strip()
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
