"""Which commit a version, a tag, a branch or an id is, asked of the places of an upstream; nothing is fetched."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from patchctl.errors import SourceUnavailable, Tried
from patchctl.git.fetch import list_refs
from patchctl.git.run import GitFailed
from patchctl.manifest.types import Stack, Upstream
from patchctl.source.git_form import places_of
from patchctl.source.types import SourceOptions
from patchctl.terminal.text import one_line
from patchctl.values import dataclass

_COMMIT = re.compile(r"[0-9a-f]{40}")
_TAGS, _HEADS = "refs/tags/", "refs/heads/"


@dataclass(frozen=True)
class Revision:
    """A commit, the tag or branch that named it where one did, and the place that said so."""

    commit: str
    tag: str | None
    branch: str | None
    origin: str


def tag_prefix(stack: Stack) -> str:
    """What stands before the version in the tags of an upstream, as in core_v0.12.1."""
    return re.split(r"\d", stack.pin.tag or "v0")[0]


def version_of(name: str, prefix: str) -> str | None:
    """The version that a tag, or what a user wrote, names; None for what is no version."""
    from packaging.version import InvalidVersion, Version

    text = name.removeprefix(prefix)
    try:
        Version(text)
    except InvalidVersion:
        return None
    return text


def find_revision(
    name: str, upstream: Upstream, wanted: str, prefix: str, options: SourceOptions, tried: list[Tried]
) -> Revision | None:
    """The first place's answer. A tag comes before a branch of that name, and a full id is taken as it is. None, with the
    reasons added to `tried`, where no place knows it."""
    for origin, refs in _asked(name, upstream, options, tried):
        tags = {ref.removeprefix(_TAGS): oid for ref, oid in refs.items() if ref.startswith(_TAGS)}
        if _COMMIT.fullmatch(wanted):
            tag = next((t for t, oid in sorted(tags.items()) if oid == wanted), None)
            return Revision(wanted, tag, None, origin)
        for tag in dict.fromkeys((wanted, prefix + wanted)):
            if tag in tags:
                return Revision(tags[tag], tag, None, origin)
        if _HEADS + wanted in refs:
            return Revision(refs[_HEADS + wanted], None, wanted, origin)
        tried.append(Tried(origin, f"it has no tag and no branch {wanted}{_like(wanted, tags)}"))
    return None


def releases(
    name: str, upstream: Upstream, prefix: str, options: SourceOptions, after: str, before: str
) -> list[tuple[str, str]]:
    """(tag, commit) of every release between two versions, in order. Raises SourceUnavailable."""
    from packaging.version import Version

    tried: list[Tried] = []
    for _, refs in _asked(name, upstream, options, tried):
        named = [(ref.removeprefix(_TAGS), oid) for ref, oid in refs.items() if ref.startswith(_TAGS + prefix)]
        known = [(Version(v), tag, oid) for tag, oid in named if (v := version_of(tag, prefix))]
        return [(tag, oid) for v, tag, oid in sorted(known) if Version(after) < v < Version(before)]
    hint = f"`--mirror {name}=URL` names another place, which may be the path of a local clone"
    raise SourceUnavailable(f"{name}: no place tells its releases", tried, hint=hint)


def _asked(
    name: str, upstream: Upstream, options: SourceOptions, tried: list[Tried]
) -> Iterable[tuple[str, Mapping[str, str]]]:
    for place, reason in places_of(name, upstream, options):
        if reason is None:
            try:
                yield place.shown, list_refs(place.address, place.local)
                continue
            except GitFailed as failure:
                reason = one_line(failure.stderr.strip()) or f"git ended with status {failure.status}"
        tried.append(Tried(place.shown, reason))


def _like(wanted: str, tags: Iterable[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(wanted, tags, 3)
    return f"; it has {', '.join(near)}" if near else ""
