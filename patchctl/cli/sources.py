"""Where a verb takes its sources from, as one argument: --source, --mirror, --offline; --bundle and what it has to be."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
from click.core import ParameterSource

from patchctl.cli.app import App, flag, split_pair
from patchctl.errors import WrongUse
from patchctl.language import message
from patchctl.terminal.text import redact

if TYPE_CHECKING:
    from patchctl.bundle.reader import Bundle
    from patchctl.manifest.distribution import Distribution
    from patchctl.source.types import SourceOptions

_bundle_file = click.Path(path_type=Path)
_PLACES = (
    click.option(
        "--source",
        type=click.Choice(["auto", "git", "sdist"]),
        default="auto",
        show_default=True,
        help="Which form of the sources to use.",
    ),
    click.option(
        "--mirror",
        "mirrors",
        multiple=True,
        metavar="NAME=URL",
        help="Another git place for an upstream, asked after the cache and before all others; a URL or a local"
        " repository. Repeatable.",
    ),
    flag("--offline", "Use no network: cache and local mirrors only."),
)
_BUNDLE = click.option(
    "--bundle",
    "file",
    type=_bundle_file,
    metavar="FILE",
    help="Take distribution and sources from this bundle; ask no network. With --root, only the sources.",
)
_PROOFS = (
    click.option("--sha256", metavar="HEX", help="The bundle's sha256: checked before anything in it is read."),
    click.option(
        "--allowed-signers",
        type=_bundle_file,
        metavar="FILE",
        help="Take a bundle only with a signature (BUNDLE.sig) of a key that FILE allows, whatever the user configuration"
        " says. FILE is what ssh-keygen(1) calls ALLOWED SIGNERS.",
    ),
)


@dataclass(frozen=True)
class Sources:
    """What the command line says of sources. With a bundle, which was checked, no network is asked for what it lacks."""

    app: App
    source: Literal["auto", "git", "sdist"] = "auto"
    mirrors: tuple[str, ...] = ()
    offline: bool = False
    bundle: Bundle | None = None

    @property
    def distribution(self) -> Distribution:
        """The run's; that of the bundle unless --root names another one."""
        return self.app.distribution

    def given(self, more: Iterable[str] = ()) -> dict[str, list[str]]:
        """--mirror by upstream, and `more` of the same form. Raises WrongUse."""
        places: dict[str, list[str]] = {}
        for mirror in (*self.mirrors, *more):
            name, url = split_pair(mirror, "--mirror")
            self.distribution.upstream(name)
            places.setdefault(name, []).append(url)
        return places

    def kept(self) -> tuple[str, ...]:
        """--mirror, as another run may be told it from a file: local paths whole, and nothing with credentials."""
        pairs = ((name, url) for name, urls in self.given().items() for url in urls if redact(url) == url)
        return tuple(f"{name}={Path(url).absolute() if Path(url).exists() else url}" for name, url in pairs)

    def after(self, source: Literal["auto", "git", "sdist"], mirrors: Iterable[str]) -> Sources:
        """With the --source and the --mirror of a run before, where this one's command line says nothing else."""
        said = click.get_current_context().get_parameter_source("source")
        given = self.given()
        more = [one for one in mirrors if one.partition("=")[0] not in given]
        source = source if said is ParameterSource.DEFAULT else self.source
        return replace(self, source=source, mirrors=(*self.mirrors, *more))

    def options(self, more: Iterable[str] = (), *, refresh: bool = False) -> SourceOptions:
        """Options for `patchctl.source`: --mirror (and `more`) first, then the mirrors of the user configuration."""
        from patchctl.source.types import SourceOptions

        places = self.given(more)
        for name, urls in self.app.user_config.mirrors.items():
            places.setdefault(name, []).extend(urls)
        return SourceOptions(
            source=self.source,
            mirrors=places,
            offline=self.offline or self.bundle is not None,
            cache=self.app.cache_folder,
            refresh=refresh,
            bundle=self.bundle,
        )


def source_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--source, --mirror and --offline, given to the command as `sources`."""
    return with_options(_collected(command), _PLACES)


def source_or_bundle_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The same with --bundle and what it has to be. The bundle is checked first, and the run uses its distribution, unless --root
    names another one."""
    return with_options(_collected(command), (*_PLACES, _BUNDLE, *_PROOFS))


def bundle_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """FILE and what it has to be, given to the command as `bundle`, which was checked."""

    @functools.wraps(command)
    def opened(*args: Any, **rest: Any) -> Any:
        return command(*args, bundle=_opened(_app(), rest), **rest)

    return with_options(opened, (click.argument("file", type=_bundle_file, metavar="FILE"), *_PROOFS))


def _collected(command: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(command)
    def collected(*args: Any, source: Any, mirrors: tuple[str, ...], offline: bool, **rest: Any) -> Any:
        app = _app()
        bundle = _opened(app, rest)
        if bundle is not None and app.root is None:
            from patchctl.bundle.reader import cached_distribution

            app.root = cached_distribution(bundle, app.cache_folder)
        if bundle is not None:
            app.release = app.release or bundle.index.release
        return command(*args, sources=Sources(app, source, mirrors, offline, bundle), **rest)

    return collected


def _opened(app: App, rest: dict[str, Any]) -> Bundle | None:
    """The bundle that the command line names, checked; its options are taken out of `rest`. Raises as `App.opened_bundle`."""
    file, sha256, signers = (rest.pop(name, None) for name in ("file", "sha256", "allowed_signers"))
    if file is None:
        for option, value in (("--sha256", sha256), ("--allowed-signers", signers)):
            if value is not None:
                raise WrongUse(
                    message("{option} is for a bundle", option=option),
                    hint=message("name the bundle with --bundle FILE"),
                )
        return None
    return app.opened_bundle(file, sha256, signers, as_json=bool(rest.get("as_json")) or rest.get("output") == "json")


def _app() -> App:
    app = click.get_current_context().find_object(App)
    assert app is not None, "the group of all verbs makes it"
    return app


def with_options(command: Callable[..., Any], options: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """A command with options, in the order of its help."""
    for option in reversed(options):
        command = option(command)
    return command
