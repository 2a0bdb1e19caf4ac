"""patchctl docs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from patchctl.cli.app import App, json_option
from patchctl.terminal.style import Style

if TYPE_CHECKING:
    from patchctl.findings.report import Report


@click.command("docs")
@click.option("--check", is_flag=True, help="Write nothing; exit 1 with a finding for each page that would differ.")
@json_option
@click.pass_obj
def command(app: App, check: bool, as_json: bool) -> int:
    """Write the generated pages, or with --check fail when one would differ.

    A page a patch and their index under docs/patches/; the table between `<!-- patches:begin -->` and
    `<!-- patches:end -->` of README.md and README.zh-CN.md; docs/practice/switches.md, from practice.yaml;
    docs/lint-rules.md, docs/links.md and manifests/schema/ where they are kept. Nothing is written while a patch cannot be
    read.
    """
    from patchctl.check.pages import check_pages, plan_documents, write_documents
    from patchctl.check.series import read_series
    from patchctl.findings.render import report_json
    from patchctl.findings.report import Report

    dist = app.distribution
    report = Report()
    series = read_series(dist, report)
    report.counts["patches"] = len(series.patches)
    written: Sequence[str] = ()
    removed: Sequence[str] = ()
    if check:
        report.add(check_pages(dist, series, strict=True))
    elif not report.errors:
        documents = plan_documents(dist, series)
        write_documents(dist.root, documents)
        written, removed = sorted(documents.changed), documents.obsolete
    data = {"check": check, "written": list(written), "removed": list(removed), **report_json(report)}
    app.emit("docs", data, lambda style: _text(report, written, removed, style), as_json)
    return report.exit_code(skip_unavailable=True)


def _text(report: Report, written: Sequence[str], removed: Sequence[str], style: Style) -> Iterable[str]:
    from patchctl.findings.render import report_text

    yield from (f"written  {path}" for path in written)
    yield from (f"removed  {path}" for path in removed)
    yield from report_text(report, style)
