"""new, edit, export and import: a stack as commits in a work tree and back, and patches of others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from patchctl.cli.app import (
    App,
    complete_upstream,
    find_stack,
    flag,
    folder_option,
    json_option,
    note,
    release_option,
    split_pair,
)
from patchctl.cli.sources import Sources, source_options
from patchctl.errors import DONE, FINDINGS, WrongUse
from patchctl.terminal.text import Style, patch_count

if TYPE_CHECKING:
    from patchctl.manifest.distribution import Distribution
    from patchctl.manifest.types import Stack
    from patchctl.source.types import SourceOptions


@click.command("new")
@click.argument("feature", metavar="FEATURE")
@click.option(
    "--stack",
    "name",
    required=True,
    metavar="UPSTREAM[/STACK]",
    shell_complete=complete_upstream,
    help="The stack that gets the patch.",
)
@folder_option("Where to open the stack [default: edit/UPSTREAM-STACK].")
@release_option
@source_options
@json_option("patchctl.prove.new:NewPatch")
@click.pass_obj
def new_command(
    app: App,
    feature: str,
    name: str,
    folder: Path | None,
    sources: Sources,
    as_json: bool,
) -> None:
    """Begin a patch: its header as a commit on the stack, and its test, probe and mutation, to be filled in.

    Opens the stack as `patchctl edit` does, with one commit more, which is empty: change files, `git add` them and `git
    commit --amend`. The test fails until it says what it wants. What a person has to write is marked TODO(new); `verify`
    names it as long as it waits. Files that are there are kept. docs/writing-patches.md has the whole way.

    \b
    Examples:
      patchctl new its_name --stack verl
      patchctl new its_name --stack vllm-ascend --dir work
    """
    from patchctl.prove.new import new_patch
    from patchctl.workspace.edit import how_to_export

    with app.writing() as dist:
        stack = find_stack(dist, name)
        made = new_patch(dist, stack, feature, folder, sources.options(), app.progress(as_json))

    def text(style: Style) -> Iterable[str]:
        yield f"{stack.upstream}/{stack.name}: {feature} begins with an empty commit in {made.folder}"
        yield from (f"written  {path}" for path in made.written)
        yield from (f"kept     {path}, which was there" for path in made.kept)
        if not (made.written or made.kept):
            yield "no test, probe and mutation: the distribution has its tests elsewhere, or none"
        yield f"change files there, `git add` them, `git commit --amend`, then: {how_to_export(stack, made.folder)}"

    app.emit("new", made, text, as_json)


@click.command("edit")
@click.argument("name", metavar="UPSTREAM[/STACK]", shell_complete=complete_upstream)
@folder_option("Where to [default: edit/UPSTREAM-STACK].")
@release_option
@source_options
@json_option("patchctl.report.stacks:EditOutput")
@click.pass_obj
def edit_command(app: App, name: str, folder: Path | None, sources: Sources, as_json: bool) -> None:
    """Open a stack as commits in a work tree, to change it with git.

    One commit a patch, on a branch of an ordinary repository: amend, reorder, drop and add commits as you like, then
    write them back with `patchctl export`. A new commit becomes a patch when its message ends with the trailers Feature,
    Switch, Upstream-Status and Drop-When; its new files become carried files.

    \b
    Examples:
      patchctl edit verl
      patchctl edit vllm-ascend --dir work
    """
    from patchctl.report.stacks import EditOutput
    from patchctl.workspace.edit import how_to_export, open_stack

    stack = find_stack(app.distribution, name)
    opened = open_stack(app.distribution, stack, folder, sources.options(), app.progress(as_json))
    result = opened.result
    data = EditOutput(stack.upstream, stack.name, opened.folder, result.base_commit, result.tip_commit)
    lines = [
        f"{stack.upstream}/{stack.name}: {len(result.steps)} commits on {result.base_commit[:12]} in {opened.folder}",
        f"change them with git, then: {how_to_export(stack, opened.folder)}",
    ]
    app.emit("edit", data, lambda style: lines, as_json)


@click.command("export")
@click.argument("name", metavar="UPSTREAM[/STACK]", shell_complete=complete_upstream)
@folder_option("The work tree of `edit` [default: edit/UPSTREAM-STACK].")
@flag("--check", "Write nothing; exit 1 when a file would differ. Needs no work tree.")
@click.option(
    "--mbox",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write plain patches for `git am` into DIR, carried files inside, instead.",
)
@click.option(
    "--for-upstream",
    metavar="FEATURE",
    help="With --mbox: this feature alone, as upstream could take it, after what it requires.",
)
@click.option(
    "--signoff",
    metavar="'NAME <MAIL>'",
    help="With --for-upstream: who signs off, and is the author of patches of patchctl's own.",
)
@release_option
@source_options
@json_option("patchctl.report.stacks:ExportOutput")
@click.pass_obj
def export_command(
    app: App,
    name: str,
    folder: Path | None,
    check: bool,
    mbox: Path | None,
    for_upstream: str | None,
    signoff: str | None,
    sources: Sources,
    as_json: bool,
) -> int:
    """Write the commits of a work tree back to patch files.

    What nobody changed stays as it is, byte for byte, on every machine. --check without a work tree builds the stack,
    turns its commits back into files, and compares. --mbox gives the way out for those without patchctl: `git am --keep-cr
    --committer-date-is-author-date` with the committer patchctl <patchctl@localhost> makes the same commit ids of them.
    --for-upstream FEATURE writes that feature alone, with a mail for each that it requires before it, titles in upstream's form, carried
    files at their places and our trailers left out; LEFT-OUT.txt says what upstream will ask for beside that.

    \b
    Examples:
      patchctl export verl
      patchctl export verl --for-upstream skip_old_log_prob --mbox mails --signoff 'A Name <a@name>'
    """
    from patchctl.report.stacks import ExportOutput
    from patchctl.workspace.edit import export_tree

    options = sources.options()
    if check and mbox is not None:
        raise WrongUse("--check writes nothing, and --mbox does", hint="leave one of them out")
    if signoff is not None and for_upstream is None:
        raise WrongUse("--signoff belongs to a feature for upstream", hint="name it with --for-upstream FEATURE")
    if for_upstream is not None:
        if mbox is None:
            raise WrongUse("--for-upstream FEATURE writes mails", hint="name their folder with --mbox DIR")
        signer = _author(signoff, "--signoff")
        return _for_upstream(app, find_stack(app.distribution, name), for_upstream, mbox, signer, options, as_json)
    if mbox is not None:
        return _mbox(app, find_stack(app.distribution, name), mbox, options, as_json)
    with nullcontext(app.distribution) if check else app.writing() as dist:
        stack = _opened(dist, name, folder) or find_stack(dist, name)
        exported, changes = export_tree(dist, stack, folder, options, check=check)

    def text(style: Style) -> Iterable[str]:
        yield from changes
        if not changes:
            yield f"{stack.upstream}/{stack.name}: {patch_count(len(exported))}, nothing differs"
        elif not check:
            yield "next: patchctl lock"

    data = ExportOutput(stack.upstream, stack.name, check, changes)
    app.emit("export", data, text, as_json)
    return FINDINGS if check and changes else DONE


def _opened(dist: Distribution, name: str, folder: Path | None) -> Stack | None:
    """The stack of the work tree, where UPSTREAM and no release is named: of --dir, else of the only one that `edit` made of it. What was
    opened stays meant when the default release is another one since: an export can leave a feature of the newest release unproven."""
    from patchctl.workspace.edit import default_folder, stack_of

    own = [s for (upstream, _), s in dist.stacks.items() if upstream == name]
    if len(own) < 2 or dist.named_release is not None:
        return None
    noted = {stack_of(folder.absolute())} if folder else {stack_of(default_folder(s).absolute()) for s in own}
    opened = [s for s in own if f"{s.upstream}/{s.name}" in noted]
    if len(opened) != 1:
        return None
    note(f"{name} means {name}/{opened[0].name}, which has a work tree")
    return opened[0]


def _for_upstream(
    app: App,
    stack: Stack,
    feature: str,
    target: Path,
    signer: tuple[str, str] | None,
    options: SourceOptions,
    as_json: bool,
) -> int:
    from patchctl.catalog.evidence import tests_of
    from patchctl.report.stacks import ExportOutput
    from patchctl.stack.export import for_upstream
    from patchctl.stack.patches import named_patches, with_requirements
    from patchctl.stack.plan import load_patches
    from patchctl.workspace.edit import built

    _check_empty(target)
    patches = load_patches(app.distribution, stack)
    ((_, wanted), *_) = named_patches({stack.upstream: patches}, feature)
    kept = {id(p) for p in with_requirements(patches, wanted, stack.upstream)}
    left_out = [p for p in patches if id(p) not in kept]
    tests = tests_of(app.distribution, stack, wanted.feature)
    with built(app.distribution, stack, patches, options, left_out) as (reader, result):
        titles = app.distribution.upstream(stack.upstream).titles
        made = for_upstream(reader, result, stack.upstream, tests, titles, signer)
    git_am = "git am --keep-cr --keep-non-patch" if titles else "git am --keep-cr"
    said = f"{wanted.feature} on {stack.upstream} {result.base_commit}, as `{git_am}` takes it. Left out:\n"
    text = said + "".join(f"- {one}\n" for one in made.left_out)
    _write_mails(target, {**made.files, "LEFT-OUT.txt": text.encode()})
    base_commit, files = result.base_commit, list(made.files)
    data = ExportOutput(stack.upstream, stack.name, base=base_commit, files=files, left_out=made.left_out)
    lines = [f"{len(made.files)} patches in {target}, on {result.base_commit}; left out:", *made.left_out]
    app.emit("export", data, lambda style: lines, as_json)
    return DONE


def _check_empty(target: Path) -> None:
    if target.exists() and any(target.iterdir()):
        raise WrongUse(f"{target} is not empty", hint="patches of an earlier export would be mixed with these")


def _write_mails(target: Path, files: Mapping[str, bytes]) -> None:
    from patchctl.atomic import filling, replace_file

    with filling(target) as staged:
        for file, content in files.items():
            replace_file(staged / file, content)


def _mbox(app: App, stack: Stack, target: Path, options: SourceOptions, as_json: bool) -> int:
    from patchctl.git.objects import COMMITTER
    from patchctl.report.stacks import ExportOutput
    from patchctl.stack.export import mbox_patches
    from patchctl.stack.plan import load_patches
    from patchctl.workspace.edit import built

    _check_empty(target)
    patches = load_patches(app.distribution, stack)
    with built(app.distribution, stack, patches, options, ()) as (reader, result):
        files = mbox_patches(reader, result)
    _write_mails(target, files)
    data = ExportOutput(stack.upstream, stack.name, base=result.base_commit, tip=result.tip_commit, files=list(files))
    lines = [
        f"{len(files)} patches in {target}, on {result.base_commit}",
        f"`git am --keep-cr --committer-date-is-author-date` with the committer {' <'.join(COMMITTER)}> makes {result.tip_commit} of them",
    ]
    app.emit("export", data, lambda style: lines, as_json)
    return DONE


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
@flag("--dry-run", "Do everything but write.")
@flag("--repair", "Mend every kind that --repair-only names, and say so for each file.")
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
@flag("--scissors", "Drop what stands above a scissors line, as `git am --scissors`.")
@flag("--mboxrd", "The mbox quotes `>From ` lines, as `git am --patch-format=mboxrd`.")
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


def _author(text: str | None, option: str = "--author") -> tuple[str, str] | None:
    from patchctl.patch.header import read_author

    try:
        return read_author(text) if text is not None else None
    except ValueError as error:
        raise WrongUse(f"{option}: {error}", hint=f"for example {option} 'patchctl <patchctl@localhost>'") from error


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
