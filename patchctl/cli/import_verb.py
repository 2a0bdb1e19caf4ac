"""patchctl import."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import click

from patchctl.cli.app import App, complete_upstream, find_stack, json_option, release_option, split_pair
from patchctl.cli.sources import Sources, source_options
from patchctl.errors import WrongUse


@click.command("import")
@click.argument(
    "files", metavar="DIR|FILE|MBOX...", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True)
)
@click.option(
    "--stack",
    "name",
    metavar="UPSTREAM[/STACK]",
    shell_complete=complete_upstream,
    help="Where to; a new STACK gets the pin that the patches are for [default: found by blob ids].",
)
@click.option("--dry-run", is_flag=True, help="Do everything but write.")
@click.option("--repair", is_flag=True, help="Mend every kind that --repair-only names, and say so for each file.")
@click.option(
    "--repair-only",
    multiple=True,
    metavar="KIND",
    type=click.Choice(["line-ends", "blank-line", "subject", "ids"]),
    help="Mend this alone: line-ends (CRLF, a byte order mark), blank-line (between header and text), subject"
    " (from the file's name), ids (missing or false `index` lines, where all applies exactly). Repeatable.",
)
@click.option("--author", metavar="'NAME <MAIL>'", help="The author of mails that name none.")
@click.option("--date", metavar="DATE", help="The date of mails that have none, as git reads dates, with its zone.")
@click.option("--charset", metavar="NAME", help="The character set of mails that name none and are not UTF-8.")
@click.option(
    "--strip",
    type=click.IntRange(0, 50),
    metavar="N",
    help="Take N leading parts off names, as `git am -pN` [default: found by what is in the base].",
)
@click.option(
    "--map",
    "maps",
    multiple=True,
    metavar="OLD=NEW",
    help="After that, put NEW in place of the leading folder OLD; NEW . is the tree itself. Repeatable.",
)
@click.option("--scissors", is_flag=True, help="Drop what stands above a scissors line, as `git am --scissors`.")
@click.option("--mboxrd", is_flag=True, help="The mbox quotes `>From ` lines, as `git am --patch-format=mboxrd`.")
@release_option
@source_options
@json_option("patchctl.report.stacks:ImportOutput")
@click.pass_obj
def import_command(
    app: App,
    files: tuple[Path, ...],
    name: str | None,
    dry_run: bool,
    repair: bool,
    repair_only: tuple[str, ...],
    author: str | None,
    date: str | None,
    charset: str | None,
    strip: int | None,
    maps: tuple[str, ...],
    scissors: bool,
    mboxrd: bool,
    sources: Sources,
    as_json: bool,
) -> None:
    """Bring foreign patches into a stack.

    Takes what `git am` takes: files of `git format-patch`, mboxes, mails of any encoding, folders of them (in the order
    of their names), Maildirs. Cover letters are passed over. Each patch must apply exactly: no fuzz, no offset. All
    faults of all files are reported at once, with file and line, and nothing is written unless there is none.

    \b
    patchctl import series/ --dry-run                # which stack, how well it fits, what is wrong
    patchctl import series/ --repair                 # mend what can be mended, and write
    patchctl import fix.mbox --stack verl/mine       # into a new stack, on the pin that the blob ids name

    Authors and dates stay those of the mails. What a header of ours lacks (need, risk, switch, ...) is marked
    TODO(import), and `verify` names each such line until it is filled in: `patchctl edit`, `git rebase -i`, `export`.

    Exit codes: 0 done, 2 files that cannot be taken, 3 no source of the base, 4 patches that do not apply exactly, or no
    stack that they are for, 5 files in the way, 6 another run writes patches of the distribution.
    """
    from patchctl.importing.import_patches import import_series
    from patchctl.importing.types import REPAIRS, Options
    from patchctl.report.stacks import import_output, import_text

    options = Options(
        frozenset(REPAIRS if repair else repair_only),
        _author(author),
        _date(date),
        _charset(charset),
        scissors,
        mboxrd,
        strip,
        tuple(_map(m) for m in maps),
    )
    progress = app.progress(as_json)
    places = sources.options()
    try:
        with nullcontext(app.distribution) if dry_run else app.writing() as dist:
            if name and "/" not in name:
                name = f"{name}/{find_stack(dist, name).name}"
            result = import_series(dist, files, name, options, places, progress, dry_run=dry_run)
    finally:
        progress.finish()
    app.emit("import", import_output(result), lambda style: import_text(result), as_json)


def _author(text: str | None) -> tuple[str, str] | None:
    from patchctl.patch import mailinfo

    try:
        return mailinfo.author(text) if text is not None else None
    except ValueError as error:
        raise WrongUse(f"--author: {error}", hint="for example --author 'patchctl <patchctl@localhost>'") from error


def _date(text: str | None) -> str | None:
    from patchctl.importing.mails import git_ident

    try:
        if text is not None:
            git_ident("x", "x@x", text)
    except ValueError as error:
        raise WrongUse(f"--date: {error}", hint="for example --date '2026-11-21 10:00:00 +0800'") from error
    return text


def _charset(name: str | None) -> str | None:
    import codecs

    try:
        if name is not None:
            "".encode(codecs.lookup(name).name)  # zlib_codec is known too, and encodes no text
    except (LookupError, ValueError) as error:
        raise WrongUse(f"--charset: {error}", hint="for example --charset GBK") from error
    return name


def _map(text: str) -> tuple[bytes, bytes]:
    old, new = (side.strip("/") for side in split_pair(text, "--map"))
    return old.encode(), b"" if new == "." else new.encode()
