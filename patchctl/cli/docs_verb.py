"""patchctl docs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from patchctl.cli.app import App, json_option
from patchctl.terminal.style import Style

if TYPE_CHECKING:
    from patchctl.check.pages import WrittenPages


@click.command("docs")
@click.option("--check", is_flag=True, help="Write nothing; exit 1 with a finding for each page that would differ.")
@json_option("patchctl.report.generated:DocsOutput")
@click.pass_obj
def command(app: App, check: bool, as_json: bool) -> int:
    """Write the generated pages, or with --check fail when one would differ. `patchctl lock` does it too.

    Under docs/patches/ a page a patch, a table a stack and their index; docs/practice/switches.md, from practice.yaml;
    docs/lint-rules.md, docs/json.md, docs/schema/ and manifests/schema/ where they are kept. Nothing is written while a patch cannot be read.
    """
    from patchctl.check.pages import write_documents
    from patchctl.cli.output_pages import output_pages
    from patchctl.findings.render import report_text, verify_output
    from patchctl.report.generated import DocsOutput

    done = write_documents(app.distribution, output_pages(app.distribution.root), check=check, strict=True)
    data = DocsOutput(check, done.written, done.removed, verify_output(done.report))

    def text(style: Style) -> Iterable[str]:
        yield from changes_text(done)
        yield from report_text(done.report, style)

    app.emit("docs", data, text, as_json)
    return done.report.exit_code(skip_unavailable=True)


def changes_text(done: WrittenPages) -> Iterable[str]:
    """A line a page that was written or removed."""
    yield from (f"written  {path}" for path in done.written)
    yield from (f"removed  {path}" for path in done.removed)
