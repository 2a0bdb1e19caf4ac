"""patchctl lock."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from patchctl.cli.app import App, complete_upstream, json_option
from patchctl.cli.sources import Sources, source_options
from patchctl.errors import DONE, FINDINGS, SourceUnavailable, WrongUse
from patchctl.terminal.text import Style

if TYPE_CHECKING:
    from patchctl.check.pages import WrittenPages
    from patchctl.source.types import SourceOptions
    from patchctl.stack.locking import LockRow


@click.command("lock")
@click.option("--check", is_flag=True, help="Write nothing; exit 1 when a lock or a page would differ.")
@click.option(
    "--requirements", is_flag=True, help="Of what profiles run on, instead: uv resolves it with a package index."
)
@click.option(
    "--pages",
    is_flag=True,
    help="Of pages, tables and schemas alone, which need no source; also where none are kept yet.",
)
@click.option("--upstream", metavar="NAME", shell_complete=complete_upstream, help="Only the locks of this upstream.")
@click.option(
    "--skip-unavailable", is_flag=True, help="With --check: exit 0 although a stack had no form that could be checked."
)
@source_options
@json_option("patchctl.report.generated:LockOutput")
@click.pass_obj
def lock_command(
    app: App,
    check: bool,
    requirements: bool,
    pages: bool,
    upstream: str | None,
    skip_unavailable: bool,
    sources: Sources,
    as_json: bool,
) -> int:
    """Write all that is generated from patches, or with --check fail, and name each file that would differ.

    That is the lock of every stack, and then, where docs/patches/ is kept, the pages, tables and schemas: under
    docs/patches/ a page a patch, a table a stack and their index; docs/practice/switches.md, from practice.yaml;
    docs/lint-rules.md, docs/json.md, docs/schema/ and manifests/schema/ where they are kept. No page is written while a
    patch cannot be read. Running it again changes nothing.

    The lock holds the digest of every patch, the blobs before and after each of them, and the resulting commits and
    trees for each form of the source. A form that cannot be had keeps its record while pin and patches are the same, and
    is "unknown" otherwise. The lists of every pin's files, which `identify` reads, are written with it.

    A lock that cannot be read, after a merge or a kill, counts as none. Where no form at all can be had and the old record
    is for other patches, nothing is written for that stack, and the exit code is 3.

    With --requirements it is the locks in manifests/requirements/ that are made: what profiles run on, resolved from what
    the trees declare at their pins, the profiles and the recipes.

    \b
    Examples:
      patchctl lock
      patchctl lock --check --skip-unavailable
    """
    from patchctl.check.pages import write_documents
    from patchctl.cli.output_pages import output_pages
    from patchctl.report.generated import LockOutput
    from patchctl.stack.locking import lock_stack

    dist = app.distribution
    if pages and (requirements or upstream):
        raise WrongUse("--pages is for pages alone", hint="leave --requirements and --upstream out")
    if requirements:
        return _requirements(app, sources.options(), as_json, check=check)
    if upstream is not None:
        dist.upstream(upstream)
    options = sources.options()
    chosen = [] if pages else [s for (name, _), s in sorted(dist.stacks.items()) if upstream in (None, name)]
    rows = [lock_stack(dist, stack, options, app.progress(as_json), check=check) for stack in chosen]
    done = write_documents(dist, output_pages(dist.root), check=check, strict=pages)
    data = LockOutput(check, rows, (), done.written, done.removed, done.report.sorted())
    app.emit("lock", data, lambda style: _text(rows, done, check, style), as_json)
    return _exit_code(rows, check, skip_unavailable) or done.report.exit_code(skip_unavailable=True)


def _requirements(app: App, options: SourceOptions, as_json: bool, *, check: bool) -> int:
    from patchctl.report.generated import LockOutput, relock_text
    from patchctl.requirements.relock import relock

    rows = relock(app.distribution, options, app.progress(as_json), check=check)
    app.emit("lock", LockOutput(check, (), rows), lambda style: relock_text(rows, check, style), as_json)
    return FINDINGS if check and any(row.differences for row in rows) else DONE


def _exit_code(rows: list[LockRow], check: bool, skip_unavailable: bool) -> int:
    if not check:
        return SourceUnavailable.code if any(row.lost for row in rows) else DONE
    if any(row.differences for row in rows):
        return FINDINGS
    unchecked = any(not row.forms for row in rows)
    return SourceUnavailable.code if unchecked and not skip_unavailable else DONE


def _text(rows: list[LockRow], pages: WrittenPages, check: bool, style: Style) -> Iterable[str]:
    from patchctl.findings import report_text
    from patchctl.manifest.lock import lock_file
    from patchctl.stack.tree_lists import TREES

    for row in rows:
        word = "written" if row.written else style.bad("differs" if check else "not written")
        word = word if row.differences else style.good("in step")
        yield f"{row.upstream:<12} {row.stack}  {word}  computed in form: {', '.join(row.forms) or 'none'}"
        if any(not d.startswith(TREES) for d in row.differences):
            yield f"    {lock_file(Path(), row.upstream, row.stack)}"
        yield from (f"    {d}" for d in row.differences)
        for form, tried in row.unavailable.items():
            yield f"    {style.note('not checked')}: form {form}"
            yield from (f"        tried {place}: {reason}" for place, reason in tried)
        if row.lost and not check:
            yield "    nothing was written: the lock has to be computed, and no form of the source could be had"
    yield from (f"written  {path}" for path in pages.written)
    yield from (f"removed  {path}" for path in pages.removed)
    yield from report_text(pages.report, style, quiet=bool(rows))
