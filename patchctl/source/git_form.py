"""Form git: fetches exactly the pinned commit, from the mirrors, then from the manifest's remotes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from patchctl.errors import SourceMismatch, Tried
from patchctl.git.fetch import fetch_commit, is_diverted, proven_tree, take_pack
from patchctl.git.run import GitFailed
from patchctl.language import message
from patchctl.manifest.types import Pin, Upstream
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
