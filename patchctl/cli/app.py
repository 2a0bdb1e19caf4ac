"""What every verb needs: the distribution, the cache, the sources' options, and the one way to print a result or findings."""

from __future__ import annotations

import functools
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from patchctl.errors import WrongUse
from patchctl.language import message, translated
from patchctl.terminal.progress import Progress
from patchctl.terminal.text import (
    ADVICE,
    COLOR,
    Style,
    fitted,
    name_root,
    one_line,
    redact_text,
    visible,
    visible_line,
    width_of,
    with_root,
)

if TYPE_CHECKING:
    from patchctl.bundle.reader import Bundle
    from patchctl.bundle.signature import Trust
    from patchctl.findings import Shown
    from patchctl.manifest.distribution import Distribution
    from patchctl.manifest.types import Stack
    from patchctl.source.config import UserConfig


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def statement_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--statement and --statement-signers."""

    @functools.wraps(command)
    def checked(*args: Any, statement: Path | None, statement_signers: Path | None, **rest: Any) -> Any:
        if statement_signers and not statement:
            raise WrongUse("--statement-signers is for a statement", hint="name the statement with --statement FILE")
        return command(*args, statement=statement, statement_signers=statement_signers, **rest)

    file = click.Path(path_type=Path)
    said = "The trees, of a workspace or an image, have to be those of this in-toto statement of `sbom`."
    signers = "The statement needs a signature (STATEMENT.sig) of a key that FILE allows."
    signed = click.option("--statement-signers", type=file, metavar="FILE", help=signers)
    return click.option("--statement", type=file, metavar="FILE", help=said)(signed(checked))


def format_option(printed: str) -> Decorator:
    """--format and --json, given to the command as `output`; `printed` is what `json_option` takes."""
    choice = click.Choice(["text", "json", "github", "gitlab", "sarif", "junit"])
    told = "How findings are printed; docs/json.md has all of them."
    option = click.option("--format", "output", type=choice, default="text", show_default=True, help=told)

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def chosen(*args: Any, output: str, as_json: bool, **rest: Any) -> Any:
            return command(*args, output="json" if as_json else output, **rest)

        return option(json_option(printed)(chosen))

    return add


def print_findings(app: App, output: str, shown: Shown, data: Any, text: Callable[[Style], Iterable[str]]) -> None:
    """Print findings in the format that was asked for: `data` as JSON, `text` for people, `shown` for CI systems."""
    if output in ("text", "json"):
        app.emit(shown.verb, data, text, output == "json")
        return
    from patchctl.findings import RENDERERS, UNTOLD, not_checked

    app.rest()
    if output in UNTOLD:
        print(*(f"not checked: {line}\n" for line in not_checked(shown.report)), sep="", end="", file=sys.stderr)
    print(RENDERERS[output](shown), end="")


# Verbs that write into a distribution, or run its tests: an installed copy is read-only and has none.
WRITERS = {"new", "edit", "export", "import", "lock", "prove", "bump", "pin", "rebase"}


@dataclass
class App:
    """One run's settings."""

    root: Path | None
    cache: Path | None
    color: str = "auto"
    release: str | None = None
    shown: Progress | None = None
    verb: str | None = None

    @cached_property
    def named_root(self) -> Path | None:
        """What --root or PATCHCTL_ROOT names; of a bundle its distribution, checked and unpacked in the cache."""
        from patchctl.manifest.distribution import VARIABLE

        named = self.root or Path(os.environ.get(VARIABLE) or ".")
        if not named.is_file():
            return self.root
        from patchctl.bundle.reader import cached_distribution

        bundle = self.opened_bundle(named)
        self.release = self.release or bundle.index.release
        return cached_distribution(bundle, self.cache_folder)

    @cached_property
    def found_root(self) -> Path:
        """The distribution's folder. Raises WrongUse where the verb writes into a distribution, and this one is read-only."""
        from patchctl.manifest.default_roots import how_to_clone, is_read_only
        from patchctl.manifest.distribution import find_root

        root = find_root(self.named_root, Path.cwd())
        bundled = self._is_of_a_bundle(root)
        if self.verb in WRITERS and (bundled or is_read_only(root)):
            kind = "a bundle's" if bundled else "an installed copy"
            what = f"{self.verb} works on a clone of the distribution, and {root} is {kind}"
            hint = "clone the repository that the bundle was made of, and run the same in the clone"
            raise WrongUse(what, hint=hint if bundled else how_to_clone(root))
        return root

    @cached_property
    def distribution(self) -> Distribution:
        """The run's, with every profile on the release that this run takes it on: `--release`, else the newest that is proven."""
        from patchctl.catalog.chosen_release import on_release
        from patchctl.manifest.distribution import Distribution

        dist = Distribution.load(self.found_root, self.cache_folder)
        return on_release(dist, self.release, note)

    def forget_distribution(self) -> None:
        """Read it again when it is asked for next: this run has written manifests."""
        self.__dict__.pop("distribution", None)

    @contextmanager
    def writing(self) -> Iterator[Distribution]:
        """The distribution, for one who writes patches and their lists: read when nobody else does. Raises WorkspaceBusy."""
        from patchctl.manifest.files import exclusive_writer

        with exclusive_writer(self.found_root):
            yield self.distribution

    def root_of(self, workspace: Path) -> Path | None:
        """The distribution that is named or around, else that of the bundle that the workspace was made of, else what `use` chose or the
        installed one, else any that the workspace was made from, else None.

        Raises WrongUse when what is named with --root or PATCHCTL_ROOT is none.
        """
        from patchctl.manifest.default_roots import MARKER, is_read_only
        from patchctl.manifest.distribution import VARIABLE, find_root
        from patchctl.workspace.state import load_state

        named, found = self.root is not None or bool(os.environ.get(VARIABLE)), None
        try:
            found = find_root(self.named_root, Path.cwd())
        except WrongUse:
            if named:
                raise
        if found is not None and (named or not is_read_only(found)):
            return found
        state = load_state(workspace)
        # os.path and not pathlib, which raises where a folder above may not be entered: another user's cache
        made_of = Path(state.root) if state is not None and os.path.isfile(Path(state.root) / MARKER) else None
        return made_of if found is None or (made_of is not None and self._is_of_a_bundle(made_of)) else found

    def show_root(self, root: Path | None) -> None:
        """Have the commands that are shown name this distribution, where without --root they would take another one, or none."""
        named = ""
        if root is not None:
            from patchctl.manifest.distribution import find_root

            named = shlex.quote(visible_line(str(root)))
            with suppress(WrongUse, OSError):  # a folder above may be closed to this user
                named = "" if os.path.realpath(find_root(None, Path.cwd())) == os.path.realpath(root) else named
        name_root(named)

    def _is_of_a_bundle(self, root: Path) -> bool:
        """Whether this distribution is one that a bundle was unpacked to."""
        return root.is_relative_to(self.cache_folder / "bundles")

    @cached_property
    def user_config(self) -> UserConfig:
        from patchctl.source.config import read_user_config

        return read_user_config()

    @cached_property
    def cache_folder(self) -> Path:
        from patchctl.source.cache import cache_root

        return (self.cache or cache_root(configured=self.user_config.cache)).absolute()

    def trust(self, allowed_signers: Path | None) -> Trust | None:
        """Whose bundles are taken: by --allowed-signers, which requires a signature, else by the user configuration."""
        from patchctl.bundle.signature import Trust

        policy = self.user_config.bundles
        revoked = Path(policy.revoked_keys) if policy.revoked_keys else None
        if allowed_signers is not None:
            return Trust(allowed_signers.absolute(), revoked, required=True)
        if policy.signatures == "off" or policy.allowed_signers is None:
            return None
        return Trust(Path(policy.allowed_signers), revoked, required=policy.signatures == "require")

    def opened_bundle(
        self, file: Path, sha256: str | None = None, signers: Path | None = None, *, as_json: bool = False
    ) -> Bundle:
        """A bundle, checked; where the user wants no more than a warning of its signature, that is one line on standard error.

        Raises WrongUse, SourceMismatch, NotTrusted.
        """
        from patchctl.bundle.reader import open_bundle

        bundle = open_bundle(file, sha256, self.progress(as_json), self.trust(signers))
        if bundle.distrust is not None:
            warning = message("warning: {what}", what=one_line(bundle.distrust.text(translated), 1000))
            print(f"patchctl: {translated(warning)}", file=sys.stderr)
        return bundle

    def progress(self, as_json: bool) -> Progress:
        return Progress() if as_json or self.shown is None else self.shown

    def rest(self) -> None:
        """Take away what progress has drawn: something is printed."""
        if self.shown is not None:
            self.shown.rest()

    def emit(self, verb: str, data: Any, text: Callable[[Style], Iterable[str]], as_json: bool) -> None:
        """Print a result: as JSON `patchctl.<verb>/1` of the dataclass `data`, or as the lines that `text` gives."""
        self.rest()
        if as_json:
            from patchctl.manifest.typeinfo import to_json

            print(json.dumps({"schema": f"patchctl.{verb}/1", **to_json(data)}, indent=2))
            return
        width = width_of(sys.stdout)
        for line in text(Style(self.colored)):
            # Renderers escape what others wrote; this is the net below them. Only our own colours pass.
            shown = "".join(p if i % 2 and self.colored else visible(p) for i, p in enumerate(COLOR.split(line)))
            # What else is printed is data: a lock, a diff, the text of a patch.
            print(fitted(with_root(shown) if shown.lstrip().startswith(ADVICE) else shown, width))

    @property
    def colored(self) -> bool:
        if self.color != "auto":
            return self.color == "always"
        return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def note(line: str) -> None:
    """On standard error, so that what is printed stays what it is."""
    print(f"patchctl: {translated(message('note: {what}', what=line))}", file=sys.stderr)


def split_pair(text: str, option: str) -> tuple[str, str]:
    """NAME=VALUE of an option. Raises WrongUse."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise WrongUse(
            message("{option} takes NAME=VALUE, not {text}", option=option, text=repr(redact_text(text))),
            hint=message("for example {option} verl=...", option=option),
        )
    return name, value


def find_stack(dist: Distribution, name: str) -> Stack:
    """The stack that UPSTREAM/STACK names; UPSTREAM alone is its only one, or that of the release in force. Raises WrongUse."""
    from patchctl.catalog.chosen_release import stack_taken

    upstream, _, stack = name.partition("/")
    dist.upstream(upstream)
    return dist.stack(upstream, stack) if stack else stack_taken(dist, upstream, note)


def complete_profile(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion: the profiles of the distribution that the current folder belongs to."""
    return complete(ctx, incomplete, lambda dist: dist.profiles)


def complete_release(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion: the releases of the distribution."""
    return complete(ctx, incomplete, lambda dist: dist.releases)


def complete_upstream(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion: the upstreams of the distribution."""
    return complete(ctx, incomplete, lambda dist: dist.upstreams)


def complete(ctx: click.Context, incomplete: str, names: Callable[[Distribution], Iterable[str]]) -> list[str]:
    """Shell completion: the names of something that a distribution has; none where there is no distribution."""
    try:
        params = ctx.find_root().params
        app = App(root=params.get("root"), cache=params.get("cache"))
        return [n for n in names(app.distribution) if n.startswith(incomplete)]
    except Exception:  # a completion must never print into the user's command line
        return []


def name_release(ctx: click.Context, name: str) -> None:
    """Make it the release of the whole command, for what `App.distribution` holds. Raises WrongUse for a second one."""
    first = ctx.meta.setdefault(__name__, name)
    if first != name:
        raise WrongUse(
            message("two releases are named: {first} and {second}", first=first, second=name), hint=message("name one")
        )
    ctx.ensure_object(App).release = name


def _named_release(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        name_release(ctx, value)


def of_release(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """The recipe of RECIPE@RELEASE; the release is taken out, and named."""
    recipe, at, release = (value or "").partition("@")
    if at:
        name_release(ctx, release)
    return recipe or None


release_option = click.option(
    "--release",
    metavar="NAME",
    expose_value=False,
    callback=_named_release,
    shell_complete=complete_release,
    help="The release to take profiles and upstreams on [default: PATCHCTL_RELEASE, else the newest that is proven].",
)


def folder_option(what: str, **more: Any) -> Decorator:
    """--dir, given to the command as `folder`; `what` is its help."""
    kind = click.Path(path_type=Path, file_okay=False)
    return click.option("--dir", "folder", type=kind, metavar="DIR", help=what, **more)


def file_option(*names: str, metavar: str = "FILE", **more: Any) -> Decorator:
    """An option that names a file, or where the command knows it as such, by - a stream."""
    kind = click.Path(path_type=Path, dir_okay=False, allow_dash=True)
    return click.option(*names, type=kind, metavar=metavar, **more)


def flag(name: str, what: str, also: str | None = None) -> Decorator:
    """A flag; `what` is its help."""
    return click.option(name, *filter(None, [also]), is_flag=True, help=what)


def optional_profile(what: str) -> Decorator:
    """--profile, which may be left out; `what` is its help."""
    return click.option("--profile", "-p", metavar="NAME", shell_complete=complete_profile, help=what)


def profile_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """--profile, and --release, which no command sees: it decides what `App.distribution` holds."""
    told = "The profile, see `patchctl list`."
    named = click.option("--profile", "-p", required=True, metavar="NAME", shell_complete=complete_profile, help=told)
    return named(release_option(command))


class JsonOption(click.Option):
    """`--json`, with what it prints."""

    def __init__(self, *args: Any, output: str, **rest: Any) -> None:
        super().__init__(*args, **rest)
        self.output = output


def json_option(output: str) -> Decorator:
    """--json, given to the command as `as_json`; `output` is the class that `App.emit` gets, as MODULE:NAME."""
    told = "Print JSON of a versioned shape, and nothing else."
    return click.option("--json", "as_json", cls=JsonOption, output=output, is_flag=True, help=told)


def verbose_option(more: str) -> Decorator:
    """-v, given to the command as `verbose`; `more` is what it adds below the summary."""
    return click.option("--verbose", "-v", is_flag=True, help=f"Also print {more}.")


def optional_workspace(what: str, *names: str, **more: Any) -> Decorator:
    """--workspace, which may be left out; `what` is its help."""
    kind = click.Path(path_type=Path, file_okay=False, readable=False)
    return click.option("--workspace", "-w", *names, type=kind, metavar="DIR", help=what, **more)


workspace_option = optional_workspace(
    "The folder of checkouts.", default=Path("workspace"), envvar="PATCHCTL_WORKSPACE", show_default=True
)
