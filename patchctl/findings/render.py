"""Findings as people and machines read them: text, JSON, GitHub annotations, SARIF, JUnit. Computes nothing.

Messages and names may come from a patch file that nobody has vouched for. Every renderer makes control characters
visible first, so that no finding can begin a line of its own, steer a terminal or speak to a CI runner.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchctl import __version__
from patchctl.findings.report import Finding, NotChecked, Report
from patchctl.terminal.text import one_line, visible_line

if TYPE_CHECKING:
    from patchctl.terminal.style import Style

_LONGEST = 1000


def report_json(report: Report) -> dict[str, Any]:
    """The shape patchctl.verify/1 (docs/json.md). Strings are cleaned: what reads it may print it."""
    return {
        "findings": [
            {k: visible_line(v) if isinstance(v, str) else v for k, v in asdict(f).items()} for f in report.sorted()
        ],
        "not_checked": [
            {"what": n.what, "stack": n.stack, "tried": [[t.place, visible_line(t.reason)] for t in n.tried]}
            for n in report.not_checked
        ],
        "checked": dict(sorted(report.counts.items())),
        "without_source": report.unseen,
        "errors": len(report.errors),
        "notes": len(report.findings) - len(report.errors),
    }


def report_text(report: Report, style: Style, *, quiet: bool = False) -> Iterator[str]:
    """Findings by file; then what was not checked and where it was looked for; then how much was checked."""
    for file, found in groupby(report.sorted(), key=lambda f: f.file):
        # A runner takes a line that begins with :: or ##[ for a command.
        shown = visible_line(file)
        yield style(f"./{shown}" if shown.startswith((":", "#")) else shown, bold=True)
        yield from (_finding_text(finding, style) for finding in found)
    if quiet:
        return
    for missing in report.not_checked:
        yield f"{style.note('not checked')}: {visible_line(missing.what)}: {_tried(missing)}"
    yield summary(report, style)


def _finding_text(finding: Finding, style: Style) -> str:
    mark = style.bad("error") if finding.severity == "error" else style.note("note ")
    line = "" if finding.line is None else str(finding.line)
    return f"  {line:>5}  {mark}  {one_line(finding.message, _LONGEST)}  {style(f'[{finding.rule}]', dim=True)}"


def _tried(missing: NotChecked) -> str:
    return "; ".join(f"{visible_line(t.place)} ({one_line(t.reason)})" for t in missing.tried)


def summary(report: Report, style: Style) -> str:
    """The last line: how much was checked, found, and not checked."""
    errors, notes = len(report.errors), len(report.findings) - len(report.errors)
    checked = ", ".join(f"{n} {what}" for what, n in sorted(report.counts.items())) or "manifests only"
    found = style.bad(_count(errors, "error")) if errors else style.good("no errors")
    rest = [_count(notes, "note")] if notes else []
    rest += [f"{len(report.not_checked)} not checked"] if report.not_checked else []
    return f"checked {checked}: {', '.join([found, *rest])}"


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def github(report: Report, root: Path) -> str:
    """Workflow commands, one a line (docs.github.com, "Workflow commands for GitHub Actions").

    In a value %, CR and LF are escaped, in a property ':' and ',' as well; whatever else is a control character was made
    visible before.
    """
    lines = []
    for finding in report.sorted():
        word = "error" if finding.severity == "error" else "notice"
        place = f"file={_property(finding.file)}" + (f",line={finding.line}" if finding.line is not None else "")
        lines.append(f"::{word} {place},title={_property(finding.rule)}::{_data(finding.message)}")
    lines += [f"::warning title=not checked::{_data(f'{n.what}: {_tried(n)}')}" for n in report.not_checked]
    return "".join(f"{line}\n" for line in lines)


def _data(text: str) -> str:
    return one_line(text, _LONGEST).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def sarif(report: Report, root: Path, rules: Mapping[str, tuple[str, str]]) -> str:
    """SARIF 2.1.0, which code scanning takes: one run, the rules that were broken, a result each. `rules` by id: what must
    hold, and why."""
    used = sorted({f.rule for f in report.findings})
    driver = {
        "name": "patchctl",
        "version": __version__,
        "rules": [
            {"id": r, "shortDescription": {"text": rules[r][0]}, "help": {"text": rules[r][1]}}
            for r in used
            if r in rules
        ],
    }
    run = {
        "tool": {"driver": driver},
        "originalUriBaseIds": {"ROOT": {"uri": f"{root.as_uri()}/"}},
        "results": [_sarif_result(f) for f in report.sorted()],
    }
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return json.dumps({"$schema": schema, "version": "2.1.0", "runs": [run]}, indent=2, ensure_ascii=True) + "\n"


def _sarif_result(finding: Finding) -> dict[str, Any]:
    from urllib.parse import quote

    absolute = Path(finding.file).is_absolute()
    artifact = {"uri": Path(finding.file).as_uri()} if absolute else {"uri": quote(finding.file), "uriBaseId": "ROOT"}
    region = {} if finding.line is None else {"region": {"startLine": finding.line}}
    return {
        "ruleId": finding.rule,
        "level": finding.severity,
        "message": {"text": one_line(finding.message, _LONGEST)},
        "locations": [{"physicalLocation": {"artifactLocation": artifact, **region}}],
    }


def junit(report: Report, root: Path) -> str:
    """JUnit's XML: a failure for each error, a skipped case for what was not checked, a passed one for the rest."""
    cases = [_case(f.rule, _place(f), "failure", f.message) for f in report.errors]
    cases += [_case("not-checked", n.what, "skipped", _tried(n)) for n in report.not_checked]
    cases += [_case("verify", f"{n} {what}", None, "") for what, n in sorted(report.counts.items())]
    counts = f'tests="{len(cases)}" failures="{len(report.errors)}" skipped="{len(report.not_checked)}" errors="0"'
    head = f'<?xml version="1.0" encoding="utf-8"?>\n<testsuites>\n<testsuite name="patchctl" {counts}>\n'
    return head + "".join(cases) + "</testsuite>\n</testsuites>\n"


def _place(finding: Finding) -> str:
    return finding.file if finding.line is None else f"{finding.file}:{finding.line}"


def _case(rule: str, name: str, result: str | None, message: str) -> str:
    from xml.sax.saxutils import quoteattr

    head = f"<testcase classname={quoteattr(f'patchctl.{rule}')} name={quoteattr(one_line(name, _LONGEST))}"
    if result is None:
        return f"{head}/>\n"
    return f"{head}><{result} message={quoteattr(one_line(message, _LONGEST))}/></testcase>\n"
