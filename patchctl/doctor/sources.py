"""Checks whether every stack's source is available: cache, mirrors, remotes, package indexes. Fetches nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from patchctl.errors import PatchctlError, Tried
from patchctl.findings.report import Finding, looked_at
from patchctl.language.messages import Translatable, joined, message
from patchctl.manifest.types import Stack, Upstream
from patchctl.source.types import SourceOptions
from patchctl.terminal.text import one_line

_AT_ONCE = 8


@dataclass(frozen=True)
class _Look:
    """What was found for a stack: cached forms; git places that answer or not; indexes that list it or not."""

    cached: tuple[str, ...]
    answering: tuple[str, ...]
    silent: tuple[Tried, ...]
    listed: tuple[str, ...]
    unlisted: tuple[Tried, ...]


def check_sources(
    stacks: Sequence[tuple[Upstream, Stack]], options: SourceOptions, note: Callable[[str], None]
) -> Iterator[Finding]:
    """Yield one finding per stack: an error if no place has it, a warning if some expected place does not answer."""
    for upstream, stack in stacks:
        note(f"looking for {stack.upstream}")
        name = f"{stack.upstream} {stack.name}"
        try:
            yield _finding(name, stack, _look(upstream, stack, options), options)
        except PatchctlError as error:
            yield looked_at("sources", name, "error", one_line(str(error)), error.hint)


def _look(upstream: Upstream, stack: Stack, options: SourceOptions) -> _Look:
    from patchctl.source.cache import cached_git, cached_sdist

    cached = []
    if cached_git(stack.upstream, stack.pin, options.cache) is not None:
        cached.append("git")
    if cached_sdist(stack.upstream, upstream, stack, options.cache) is not None:
        cached.append("sdist")
    answering, silent = _git_places(upstream, options.mirrors.get(stack.upstream, ()), options.offline)
    unlisted: list[Tried] = []
    listed: list[str] = []
    if upstream.sdist is not None and stack.pin.sdist is not None and not options.offline:
        from patchctl.source.package_index import offers

        listed = offers(upstream.sdist, stack.pin.sdist, unlisted)
    return _Look(tuple(cached), tuple(answering), tuple(silent), tuple(listed), tuple(unlisted))


def _git_places(upstream: Upstream, mirrors: Sequence[str], offline: bool) -> tuple[list[str], list[Tried]]:
    """Return which places are there: local folders exist, hosts accept connections. Only a fetch finds the commit."""
    from patchctl.source.git_form import why_skipped
    from patchctl.source.places import parse_place

    places = [parse_place(address) for address in (*mirrors, *upstream.git)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        reasons = list(pool.map(lambda place: why_skipped(place, offline), places))
    good = [place.shown for place, reason in zip(places, reasons, strict=True) if reason is None]
    bad = [Tried(place.shown, reason) for place, reason in zip(places, reasons, strict=True) if reason is not None]
    return good, bad


def _finding(name: str, stack: Stack, look: _Look, options: SourceOptions) -> Finding:
    have = joined(_had(look))
    tried = tuple(Tried(t.place, one_line(t.reason)) for t in (*look.silent, *look.unlisted))
    if not have and options.offline:
        todo = message("run `patchctl fetch` with a network")
        return looked_at("sources", name, "warning", message("not in the cache, and offline"), todo)
    if not have:
        todo = message(
            "add a git mirror with --mirror {upstream}=URL or `mirrors:` in the user configuration",
            upstream=stack.upstream,
        )
        return looked_at("sources", name, "error", message("no place has it"), todo, tried=tried)
    if "git" not in look.cached and not look.answering and not options.offline:
        todo = message("enough as long as no patch needs a file that the sdist lacks; --mirror adds a git mirror")
        what = message("{places}; no git place answers", places=have)
        return looked_at("sources", name, "warning", what, todo, tried=tried)
    return looked_at("sources", name, "ok", have, tried=tried)


def _had(look: _Look) -> Iterator[Translatable]:
    if look.cached:
        yield message("in the cache (form {forms})", forms=joined(look.cached))
    if look.answering:
        yield message("git answers at {place}", place=look.answering[0])
    if look.listed:
        yield message("the sdist is at {place}", place=look.listed[0])
