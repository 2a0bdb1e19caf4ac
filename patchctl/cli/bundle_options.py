"""--bundle and --sha256 of the verbs that take their sources, and their distribution, out of a bundle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from patchctl.cli.app import App
from patchctl.errors import WrongUse

if TYPE_CHECKING:
    from patchctl.bundle.read import Bundle
    from patchctl.source.types import SourceOptions

bundle_file = click.Path(path_type=Path)
sha256_option = click.option("--sha256", "bundle_sha256", metavar="HEX",
                             help="The bundle's sha256: checked before anything in it is read.")  # fmt: skip
_OPTIONS = (
    click.option("--bundle", type=bundle_file, metavar="FILE",
                 help="Take distribution and sources from this bundle; ask no network. With --root, only the sources."),
    sha256_option,
)  # fmt: skip


def bundle_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--bundle and --sha256."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def take_bundle(app: App, bundle: Path | None, sha256: str | None, *, as_json: bool) -> Bundle | None:
    """Check a bundle and let the run use its distribution, unless --root names another one. None without a bundle.

    Called before anything of `app` is used. Raises WrongUse, SourceMismatch.
    """
    if bundle is None:
        if sha256 is not None:
            raise WrongUse("--sha256 is that of a bundle", hint="name the bundle with --bundle FILE")
        return None
    from patchctl.bundle.read import open_bundle

    opened = open_bundle(bundle, sha256, app.progress(as_json))
    if app.root is None:
        from patchctl.bundle.unpack import cached_distribution

        app.root = cached_distribution(opened, app.cache_folder)
    return opened


def with_bundle(options: SourceOptions, bundle: Bundle | None) -> SourceOptions:
    """These options with a bundle as their first place. Then no network is asked for what it lacks."""
    return options if bundle is None else replace(options, bundle=bundle, offline=True)
