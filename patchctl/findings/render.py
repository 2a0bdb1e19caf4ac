"""Findings as text, and as the JSON of docs/json.md. Only renders.

Messages and names may come from an untrusted patch file. Renderers escape control characters first, so that no
finding can start a line of its own, steer a terminal or send commands to a CI runner.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

from patchctl.doc import Doc
from patchctl.errors import Tried
from patchctl.findings.report import Finding, NotChecked, Report
from patchctl.terminal.text import counted, one_line, visible_line

if TYPE_CHECKING:
    from patchctl.terminal.style import Style

LONGEST = 1000
_LONGEST_NAME = 25


@dataclass(frozen=True)
class VerifyOutput:
    """What `verify` prints."""

    findings: Annotated[list[Finding], Doc("findings, sorted by file and line")]
    not_checked: Annotated[list[NotChecked], Doc("checks skipped because a source was unavailable")]
    checked: Annotated[dict[str, int], Doc("number of items checked, by kind")]
    without_source: Annotated[list[str], Doc("stacks with no available source form")]
    errors: Annotated[int, Doc("number of findings that fail the run")]
    notes: Annotated[int, Doc("number of findings that do not")]


def verify_output(report: Report) -> VerifyOutput:
    """Return a report in the form that `verify` prints."""
    errors, checked = len(report.errors), dict(sorted(report.counts.items()))
    notes = len(report.findings) - errors
    return VerifyOutput(report.sorted(), report.not_checked, checked, report.unseen, errors, notes)


@dataclass(frozen=True)
class MachineFinding:
    """One check of a machine. Several findings may share a name."""

    area: Annotated[str, Doc("area of the machine, or of the recipe to run on it", line=True)]
    name: Annotated[str, Doc("item checked", line=True)]
    level: Annotated[str, Doc("`ok`, `note` (informational), `warning`, `wrong` or `missing`, `unknown`", line=True)]
    what: Annotated[str, Doc("result of the check", line=True)]
    todo: Annotated[str | None, Doc("suggested action", line=True)]
    needed: Annotated[bool, Doc("true if a run stops or goes wrong unless the level is `ok`")]


def of_machine(finding: Finding, error: str) -> tuple[str, str, str, str, str | None, bool]:
    """Return the fields of a MachineFinding; `error` is the word for that level."""
    level = error if finding.level == "error" else finding.level
    return finding.rule, finding.name, level, finding.message, finding.todo, finding.needed


def report_text(report: Report, style: Style, *, quiet: bool = False) -> Iterator[str]:
    """Yield findings by file, then what was not checked and the places tried, then a summary."""
    for file, found in groupby(report.sorted(), key=lambda f: f.file):
        # CI runners read a line that starts with :: or ##[ as a command.
        shown = visible_line(file)
        yield style(f"./{shown}" if shown.startswith((":", "#")) else shown, bold=True)
        yield from (_finding_text(finding, style) for finding in found)
    if quiet:
        return
    for missing in report.not_checked:
        yield f"{style.note('not checked')}: {visible_line(missing.what)}: {places(missing.tried)}"
    yield summary(report, style)


def _finding_text(finding: Finding, style: Style) -> str:
    mark = style.bad("error") if finding.level == "error" else style.note("note ")
    line = "" if finding.line is None else str(finding.line)
    return f"  {line:>5}  {mark}  {one_line(finding.message, LONGEST)}  {style(f'[{finding.rule}]', dim=True)}"


def places(tried: Sequence[Tried]) -> str:
    """Return every place tried, with its reason."""
    return "; ".join(f"{visible_line(t.place)} ({one_line(t.reason)})" for t in tried)


def summary(report: Report, style: Style) -> str:
    """Return the last line: how much was checked, found, and not checked."""
    errors, notes = len(report.errors), len(report.findings) - len(report.errors)
    checked = ", ".join(f"{n} {what}" for what, n in sorted(report.counts.items())) or "manifests only"
    found = style.bad(counted(errors, "error")) if errors else style.good("no errors")
    rest = [counted(notes, "note")] if notes else []
    rest += [f"{len(report.not_checked)} not checked"] if report.not_checked else []
    return f"checked {checked}: {', '.join([found, *rest])}"


def machine_text(
    findings: Sequence[Finding], areas: Mapping[str, str], words: Mapping[str, str], style: Style
) -> Iterator[str]:
    """Yield one line per finding by area (name to title), with what to do below it. `words` translates levels."""
    wide, width = max(map(len, words.values())), min(_LONGEST_NAME, max(len(f.name) for f in findings))
    for area, title in areas.items():
        rows = [f for f in findings if f.rule == area]
        if rows:
            yield style(title, bold=True)
        for row in rows:
            paint = style.bad if row.blocks else style.good if row.level == "ok" else style.note
            word = paint(f"{words[row.level]:<{wide}}")
            yield f"  {word}  {visible_line(row.name):<{width}}  {visible_line(row.message)}"
            if row.level != "ok":
                below = f"  {'':{wide}}  {'':<{width}}"
                yield from (f"{below}  tried {visible_line(f'{t.place}: {t.reason}')}" for t in row.tried)
                yield from (f"{below}  try: {visible_line(todo)}" for todo in (row.todo,) if todo)
