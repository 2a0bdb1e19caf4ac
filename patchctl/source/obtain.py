"""Obtains a base: from the cache, then git, then package indexes."""

from __future__ import annotations

from pathlib import Path

from patchctl.errors import SourceUnavailable, Tried
from patchctl.language import joined, message
from patchctl.manifest.types import Stack, Upstream
from patchctl.source.cache import cached_git, cached_sdist
from patchctl.source.types import FORMS, Base, Form, SourceOptions
from patchctl.terminal.progress import Progress

BUNDLE_HINT = message(
    "--bundle allows no other source but local mirrors: create a bundle of this profile at these pins"
)


def obtain(upstream: Upstream, stack: Stack, options: SourceOptions, progress: Progress) -> Base:
    """Return the base of a stack's pin in the form of `options.source`; with "auto", the first form available.

    Raises SourceUnavailable with every place tried, SourceMismatch if a source is not the pinned one.
    """
    forms = FORMS if options.source == "auto" else (options.source,)
    return _obtain(forms, upstream, stack, options, progress)


def obtain_form(form: Form, upstream: Upstream, stack: Stack, options: SourceOptions, progress: Progress) -> Base:
    """Like `obtain`, in this form, whatever `options.source` is."""
    return _obtain((form,), upstream, stack, options, progress)


CACHE = "cache "
"""The prefix of a tried place that is the machine's own cache."""


def _obtain(
    forms: tuple[Form, ...], upstream: Upstream, stack: Stack, options: SourceOptions, progress: Progress
) -> Base:
    name = stack.upstream
    tried: list[Tried] = []
    bundled = options.bundle is not None and options.bundle.source(name, "git") is not None
    for step, form in _order(forms, mirrored=bundled or bool(options.mirrors.get(name))):
        if step == "fetch":
            base = _fetch(form, upstream, stack, options, progress, tried)
        else:
            base = None if options.refresh else _cached(form, upstream, stack, options.cache)
        if base is not None:
            return base
    if not options.refresh:
        tried.insert(0, Tried(message("cache {folder}", folder=options.cache), message("not there")))
    raise SourceUnavailable(
        message("{name}: no place has {pin}", name=name, pin=_pin_text(stack, forms)),
        tried,
        hint=_hint(stack, forms, options),
    )


def _order(forms: tuple[Form, ...], mirrored: bool) -> list[tuple[str, Form]]:
    """Return the steps in order: the cache first, unless a mirror or a bundle with a pack was given.

    Those ask for git, so a cached sdist must not come first.
    """
    cached: list[tuple[str, Form]] = [("cache", form) for form in forms]
    fetched: list[tuple[str, Form]] = [("fetch", form) for form in forms]
    if mirrored and len(forms) > 1:
        return [cached[0], fetched[0], *cached[1:], *fetched[1:]]
    return cached + fetched


def _cached(form: Form, upstream: Upstream, stack: Stack, root: Path) -> Base | None:
    if form == "git":
        return cached_git(stack.upstream, stack.pin, root)
    return cached_sdist(stack.upstream, upstream, stack, root)


def _fetch(
    form: Form, upstream: Upstream, stack: Stack, options: SourceOptions, progress: Progress, tried: list[Tried]
) -> Base | None:
    if form == "sdist":
        from patchctl.source import sdist

        return sdist.fetch(upstream, stack, options, progress, tried)
    from patchctl.source import git_form

    return git_form.fetch(stack.upstream, upstream, stack.pin, options, progress, tried)


def _pin_text(stack: Stack, forms: tuple[Form, ...]) -> str:
    wanted = []
    if "git" in forms and stack.pin.commit is not None:
        wanted.append(message("commit {commit}", commit=stack.pin.commit))
    if "sdist" in forms and stack.pin.sdist is not None:
        wanted.append(message("source distribution {version}", version=stack.pin.sdist.version))
    return joined(wanted, " or ") if wanted else message("its source distribution")


def _hint(stack: Stack, forms: tuple[Form, ...], options: SourceOptions) -> str:
    if options.bundle is not None:
        return BUNDLE_HINT
    if options.offline:
        return message("the run is offline: run `patchctl fetch` first, with a network")
    if "git" in forms and stack.pin.commit is not None:
        return message("`--mirror {upstream}=URL` names another source, such as a local clone", upstream=stack.upstream)
    return message("set another package index with PIP_INDEX_URL, PIP_FIND_LINKS or pip's configuration")
