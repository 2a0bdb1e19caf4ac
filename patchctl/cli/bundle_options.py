"""--bundle, --sha256 and --allowed-signers of the verbs that take their sources, and their distribution, out of a bundle."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from patchctl.cli.app import App
from patchctl.errors import WrongUse

if TYPE_CHECKING:
    from patchctl.bundle.read import Bundle
    from patchctl.source.types import SourceOptions

bundle_file = click.Path(path_type=Path)
_PROOFS = (
    click.option("--sha256", metavar="HEX", help="The bundle's sha256: checked before anything in it is read."),
    click.option("--allowed-signers", type=click.Path(path_type=Path), metavar="FILE",
                 help="Take a bundle only with a signature (BUNDLE.sig) of a key that FILE allows, whatever the user configuration"
                      " says. FILE is what ssh-keygen(1) calls ALLOWED SIGNERS."),
)  # fmt: skip


@dataclass(frozen=True)
class AskedBundle:
    """A bundle that the command line names, and what it has to be."""

    path: Path
    sha256: str | None
    allowed_signers: Path | None

    def opened(self, app: App, *, as_json: bool) -> Bundle:
        """The bundle, checked. Where the user wants no more than a warning of its signature, that is one line on standard error.

        Raises WrongUse, SourceMismatch, NotTrusted.
        """
        from patchctl.bundle.read import open_bundle

        bundle = open_bundle(self.path, self.sha256, app.progress(as_json), app.trust(self.allowed_signers))
        if bundle.distrust is not None:
            from patchctl.terminal.text import one_line

            print(f"patchctl: warning: {one_line(str(bundle.distrust), 1000)}", file=sys.stderr)
        return bundle


def bundle_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--bundle and what it has to be, given to the command as `bundle`: an AskedBundle, or None."""
    help_text = "Take distribution and sources from this bundle; ask no network. With --root, only the sources."
    return click.option("--bundle", "file", type=bundle_file, metavar="FILE", help=help_text)(_collected(command))


def bundle_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """FILE and what it has to be, given to the command as `bundle`: an AskedBundle."""
    return click.argument("file", type=bundle_file, metavar="FILE")(_collected(command))


def _collected(command: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(command)
    def collected(*args: Any, file: Path | None, sha256: str | None, allowed_signers: Path | None, **rest: Any) -> Any:
        for option, given in (("--sha256", sha256), ("--allowed-signers", allowed_signers)):
            if file is None and given is not None:
                raise WrongUse(f"{option} is for a bundle", hint="name the bundle with --bundle FILE")
        asked = AskedBundle(file, sha256, allowed_signers) if file else None
        return command(*args, bundle=asked, **rest)

    found: Callable[..., Any] = collected
    for option in reversed(_PROOFS):
        found = option(found)
    return found


def take_bundle(app: App, asked: AskedBundle | None, *, as_json: bool) -> Bundle | None:
    """Check a bundle and let the run use its distribution, unless --root names another one. None without a bundle.

    Called before anything of `app` is used but the user's configuration. Raises WrongUse, SourceMismatch, NotTrusted.
    """
    if asked is None:
        return None
    opened = asked.opened(app, as_json=as_json)
    if app.root is None:
        from patchctl.bundle.unpack import cached_distribution

        app.root = cached_distribution(opened, app.cache_folder)
    return opened


def with_bundle(options: SourceOptions, bundle: Bundle | None) -> SourceOptions:
    """These options with a bundle as their first place. Then no network is asked for what it lacks."""
    return options if bundle is None else replace(options, bundle=bundle, offline=True)
