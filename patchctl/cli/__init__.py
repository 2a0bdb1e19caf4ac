"""The command line: verbs, whose modules are imported when one of theirs is asked for.

`main` is the only place that turns an exception into a message and an exit code. Click's own handling is off
(standalone_mode), since it would end every fault of a user with the same code.
"""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import click

from patchctl import __version__, extension
from patchctl.cli.app import App, flag
from patchctl.errors import CLOSED_PIPE, INTERRUPTED, SUMMARY, Ended, MachineFailed, PatchctlError, WrongUse
from patchctl.language import CHINESE, ENGLISH, TRANSLATED, chosen, message, recalled, translated, use
from patchctl.terminal.progress import progress_of_run

# The help of the group is printed from here, so that `patchctl --help` imports no verb: a heading, and below it each verb
# with its module, and in what fits beside its name in 80 columns.
_GROUPS = {
    "Apply and inspect": {
        "apply": ("workspace_verbs", "Build a profile's stacks and write the patched trees."),
        "revert": ("workspace_verbs", "Restore the unpatched base, byte for byte."),
        "repair": ("workspace_verbs", "Restore a clean base after a crash or damage; lose nothing."),
        "status": ("workspace_verbs", "Show a workspace's profile, pins, patches and local edits."),
        "verify": ("check_verbs", "Check the distribution, or with --workspace trees on disk."),
        "list": ("catalog_verbs", "List profiles, stacks, patches and releases."),
        "show": ("catalog_verbs", "Show a patch: header, files, switch, tests, upstream status."),
        "report": ("catalog_verbs", "Write one HTML page about the whole distribution."),
        "identify": ("workspace_verbs", "Find by content which pin a source folder is."),
        "blame": ("workspace_verbs", "Tell whether upstream or a patch wrote a line or traceback."),
        "bisect": ("workspace_verbs", "Find the patch of a profile that breaks a command."),
    },
    "Deploy": {
        "fetch": ("deploy_verbs", "Download and verify a profile's pinned sources."),
        "bundle": ("deploy_verbs", "Carry a profile to machines without a network, in one file."),
        "install": ("deploy_verbs", "Install patched trees into a Python environment."),
        "requirements": ("catalog_verbs", "Print a profile's locked dependencies as pip reads them."),
        "sbom": ("catalog_verbs", "Print a profile's bill of materials, CycloneDX or SPDX."),
        "image": ("check_verbs", "Check the trees and labels of a container image in a file."),
        "cluster": ("cluster_verb", "Check every node of a Ray cluster, or apply to all of them."),
    },
    "Maintain patches": {
        "init": ("pin_verbs", "Begin a distribution of your own, for another upstream."),
        "new": ("edit_verbs", "Start a patch: header, test, probe and mutation to fill in."),
        "edit": ("edit_verbs", "Open a stack as commits in a work tree."),
        "export": ("edit_verbs", "Write the commits of a work tree back to patch files."),
        "import": ("edit_verbs", "Import mails, an mbox or a folder of patch files."),
        "lock": ("check_verbs", "Write locks, pages and tables from patches, or check them."),
        "prove": ("prove_verb", "Run tests that fail without a patch and pass with it."),
        "outdated": ("pin_verbs", "Show what upstreams have that is newer than the pins."),
        "bump": ("pin_verbs", "Make a new release: move stacks, lock and prove them."),
        "pin": ("pin_verbs", "Create a stack at another revision, without patches yet."),
        "rebase": ("rebase_verbs", "Move a stack's patches to another upstream revision."),
        "drift": ("rebase_verbs", "Show how patches fare on newer releases, or local changes."),
    },
    "Tool": {
        "doctor": ("tool_verbs", "Check what this machine lacks."),
        "script": ("tool_verbs", "Run a script of the distribution, or list them."),
        "use": ("tool_verbs", "Fetch a distribution and make it the default."),
    },
}
VERBS = {name: module for below in _GROUPS.values() for name, (module, _) in below.items()}


def module_of(verb: str) -> str:
    """The module below patchctl.cli that has a verb of patchctl itself."""
    return VERBS.get(verb, f"{verb}_verb")


def verbs() -> dict[str, str]:
    """Every verb with its help, as `--help` shows them."""
    return {name: text for below in _headings().values() for name, text in below.items()}


def _headings() -> dict[str, dict[str, str]]:
    """Verbs by heading, those of extensions included."""
    found = {heading: {name: text for name, (_, text) in below.items()} for heading, below in _GROUPS.items()}
    for name, (heading, text, _) in _of_extensions().items():
        found.setdefault(heading, {})[name] = text
    return found


def _of_extensions() -> dict[str, tuple[str, str, str]]:
    """Heading, help and command by the name of the verb. Raises WrongUse where two add one name."""
    found: dict[str, tuple[str, str, str]] = {}
    for one in extension.registered():
        for name, (text, command) in one.verbs.items():
            if name in VERBS or name in found:
                what = (
                    f"the extension {extension.distribution_of(command)} adds the verb {name}, which is there already"
                )
                raise WrongUse(what, hint="take one of the two away")
            found[name] = one.heading, text, command
    return found


class _ReaderGone(Exception):
    """Standard output was closed. No OSError: click's main would end the process with 1 for that."""


@contextmanager
def _telling_closed_pipes() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise _ReaderGone from error


# What `patchctl` alone says.
_FIRST_STEPS = """\
Which command? A first run:

  patchctl doctor                         what this machine lacks
  patchctl list                           profiles, releases and their features
  patchctl apply --profile NAME           fetch, patch and check the upstreams, into ./workspace
  patchctl verify --workspace workspace   read back every file of it
  patchctl recipe list                    training recipes; then preflight and train

`patchctl --help` lists every command; --help after a command explains it."""

# Options and verbs that have another name now, and what to say to those who use the old one.
_RENAMED = {
    "--set": "--release NAME names a release; an override is KEY=VALUE without an option",
    "--into": "it is called --in-place now",
    "--into-python": "it is called --site-packages now",
    "--again": "it is called --rerun now",
    "--part": "it is called --only now",
    "--since": "it is called --baseline now",
    "--via": "it is called --through now",
    "--postpone": "it is called --defer now",
    "--pr": "it is called --for-upstream now",
    "completion": "`_PATCHCTL_COMPLETE=bash_source patchctl` prints the script now; zsh_source and fish_source those of the others",
    "docs": "it is called `patchctl lock --pages` now",
    "env": "it is called `patchctl recipe env` now",
    "labels": "it is called `patchctl status --labels` now",
}


# What click says of a command line that does not fit.
_OF_CLICK = (
    message("Missing option {option}.", option=""),
    message("No such option {option}. Did you mean {other}?", option="", other=""),
    message("No such option {option}.", option=""),
    message("No such option: {option}", option=""),
    message("Option {option} requires an argument.", option=""),
    message("Invalid value for {option}: {why}", option="", why=""),
    message("Got unexpected extra argument ({names})", names=""),
    message("Got unexpected extra arguments ({names})", names=""),
)


class VerbGroup(click.Group):
    """Loads a verb's module when that verb is run."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _telling_closed_pipes():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _telling_closed_pipes():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(verbs())

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        more = {} if name in VERBS else _of_extensions()
        if name not in VERBS and name not in more:
            if name in _RENAMED and not ctx.resilient_parsing:
                raise WrongUse(f"No such command '{name}'.", hint=_RENAMED[name])
            return None
        own = f"patchctl.cli.{module_of(name)}:{name}_command"
        command: click.Command = extension.load(more[name][-1] if name in more else own)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, verbs()))
        for heading, below in _headings().items():
            with formatter.section(heading):
                formatter.write_dl([(f"{name:<{width}}", text) for name, text in below.items()])


def _language(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """A language as a locale writes it too: zh_CN, zh_CN.UTF-8."""
    known = click.Choice([ENGLISH, CHINESE], case_sensitive=False)
    return None if value is None else known.convert(value.partition(".")[0].replace("_", "-"), param, ctx)


_HELP = f"""Versioned patch stacks for verl, vLLM, vllm-ascend, Megatron-LM and MindSpeed.

Fetches the pinned upstream sources, applies a profile's patches exactly, proves the result byte for byte, and takes
it back. A first run: patchctl apply --profile qwen3-235b

Exit codes: {SUMMARY}.
"""


@click.group(
    cls=VerbGroup,
    help=_HELP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    invoke_without_command=True,
)
@flag("--version", "Show the versions of patchctl and of the distribution, and exit.")
@click.option(
    "--root",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The distribution to use, or a bundle that holds it [default: PATCHCTL_ROOT, else the nearest folder upward with manifests/, else what "
    "`use` chose, else the one that was installed with patchctl].",
)
@click.option(
    "--cache",
    type=click.Path(path_type=Path, file_okay=False, readable=False),
    metavar="DIR",
    help="Where sources are kept [default: PATCHCTL_CACHE, else the user configuration, else ~/.cache/patchctl].",
)
@click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    show_default=True,
    help="Colours; NO_COLOR is obeyed.",
)
@click.option(
    "--lang",
    callback=_language,
    shell_complete=lambda *_: [ENGLISH, CHINESE],
    metavar=f"[{ENGLISH}|{CHINESE}]",
    help="Language of what `apply`, `doctor`, `preflight`, `revert` and `status` print for people [default: PATCHCTL_LANG, else that of the locale].",
)
@click.pass_context
def cli(ctx: click.Context, version: bool, root: Path | None, cache: Path | None, color: str, lang: str | None) -> None:
    use(chosen(lang) if ctx.invoked_subcommand in TRANSLATED else ENGLISH)
    shown = ctx.obj
    if shown is not None:
        shown.of(ctx.invoked_subcommand)
    if os.environ.get("PATCHCTL_SET"):
        raise WrongUse(
            "PATCHCTL_SET is called PATCHCTL_RELEASE now", hint="unset PATCHCTL_SET, and export PATCHCTL_RELEASE"
        )
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise WrongUse("the current folder is no longer there", hint="`cd` to one that is") from error
    ctx.obj = App(root, cache, color, os.environ.get("PATCHCTL_RELEASE") or None, shown, ctx.invoked_subcommand)
    ctx.obj.show_root(root)
    if version:
        from patchctl.cli.tool_verbs import version_lines

        print("\n".join(version_lines(ctx.obj)))
        ctx.exit()
    if ctx.invoked_subcommand is None:
        print(_FIRST_STEPS, file=sys.stderr)
        ctx.exit(WrongUse.code)


def main() -> NoReturn:
    """Run the command line and end the process with the right code."""
    _open_streams()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _end)
    code = run(sys.argv[1:])
    gc.freeze()  # Python looks through all that there is once more as it ends, gc.disable() or not: 4 ms for nothing
    sys.exit(code)


def _open_streams() -> None:
    """Where a shell has closed one (`>&-`), what is said goes nowhere, and not into the next file that is opened."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", errors="backslashreplace", closefd=False))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.encoding.lower() not in ("utf-8", "utf8"):
        # What the locale cannot write, as a document's Chinese title or a folder's name, is an escape, as on standard error.
        sys.stdout.reconfigure(errors="backslashreplace")


def _end(number: int, _: object) -> NoReturn:
    """Children are ended and folders put away as with an interrupt; a second signal does not disturb that."""
    for one in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)
    raise Ended(number)


def run(args: list[str]) -> int:
    """Run one command line and return its exit code. Every error is printed here, once."""
    own = args[: args.index("--")] if "--" in args else args  # what follows is another program's
    app_json = "--json" in own
    try:
        # A page of help has nothing to say of its progress, however slow the machine is.
        with progress_of_run(silent=app_json or not {"-h", "--help"}.isdisjoint(own)) as shown:
            code = cli.main(args=args, prog_name="patchctl", standalone_mode=False, obj=shown)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.ClickException as wrong:
        return _report(_as_wrong_use(wrong), app_json)
    except PatchctlError as error:
        return _report(error, app_json)
    except Ended as signalled:
        print(f"patchctl: {translated(message('told to end'))}", file=sys.stderr)
        return signalled.code
    except (KeyboardInterrupt, click.Abort):
        print(f"patchctl: {translated(message('interrupted'))}", file=sys.stderr)
        return INTERRUPTED
    except (BrokenPipeError, _ReaderGone):
        if not _reader_gone():
            what = message("a program that patchctl had started ended before it had read what it was told")
            return _report(MachineFailed(what, hint=message("run the same again: it may have been killed")), app_json)
        # What is still in the buffer must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return CLOSED_PIPE
    except MemoryError:
        what, hint = message("there is no memory left"), message("give it more, and run the same again")
        return _report(MachineFailed(what, hint=hint), app_json)
    except Exception as fault:
        from patchctl.os_errors import user_error_or_none

        refused = user_error_or_none(fault) if isinstance(fault, OSError) else None
        return _report(refused, app_json) if refused is not None else _fault(fault, app_json)


def _reader_gone() -> bool:
    """Whether it is our own output that no one reads: a pipe to a child of ours breaks with the same error."""
    import select

    poll = select.poll()
    for stream in (sys.stdout, sys.stderr):
        try:
            poll.register(stream.fileno(), 0)
        except (AttributeError, OSError, ValueError):  # closed, or no file at all
            return True
    return any(event & (select.POLLERR | select.POLLHUP | select.POLLNVAL) for _, event in poll.poll(0))


def _as_wrong_use(wrong: click.ClickException) -> WrongUse:
    context = getattr(wrong, "ctx", None)
    hint: str | None = None
    if context:
        hint = message("`{command} --help` shows how it is used", command=context.command_path)
    if isinstance(wrong, click.NoSuchOption) and (renamed := _RENAMED.get(wrong.option_name)):
        has = {option for one in context.command.params for option in one.opts} if context else set()
        hint = renamed if has & set(renamed.split()) else hint
    ours = {option for one in cli.params for option in one.opts}
    if isinstance(wrong, click.NoSuchOption) and context and wrong.option_name in ours:
        verb = context.command_path.removeprefix("patchctl ")
        hint = message("it is an option of patchctl itself: write it before `{verb}`", verb=verb)
        # Without the options of the verb that are spelt like it.
        wrong = click.NoSuchOption(wrong.option_name, ctx=context)
    return WrongUse(recalled(wrong.format_message(), _OF_CLICK), hint=hint)


def _report(error: PatchctlError, as_json: bool) -> int:
    from patchctl.terminal.text import render_error

    try:
        sys.stdout.flush()
        render_error(error, as_json=as_json)
        sys.stdout.flush()
    except OSError:  # nothing more can be written there, and what is in the buffer must not raise again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        render_error(error, as_json=False)
    return error.code


def _fault(fault: Exception, as_json: bool) -> int:
    """A bug of ours: the traceback goes to the user, because nothing else tells what to report."""
    import traceback

    traceback.print_exception(fault)
    name = type(fault).__name__
    what = message("a fault of patchctl {version}: {name}: {fault}", version=__version__, name=name, fault=fault)
    return _report(PatchctlError(what, hint=message("please report it with the lines above")), as_json)
