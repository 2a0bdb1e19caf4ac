"""Findings in the formats of CI systems: GitHub annotations, GitLab code quality, SARIF, JUnit. Only renders."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from patchctl import __version__
from patchctl.findings.render import LONGEST, places
from patchctl.findings.report import Finding, Level, Report
from patchctl.terminal.text import one_line


class Described(Protocol):
    """A rule's description."""

    @property
    def holds(self) -> str: ...
    @property
    def why(self) -> str: ...


@dataclass(frozen=True)
class Shown:
    """A report with what the formats need: the verb, the root that files are relative to, and the rules."""

    report: Report
    verb: str
    root: Path | None = None
    rules: Mapping[str, Described] = field(default_factory=dict)


def _weight(finding: Finding) -> Level:
    """Return the level for a format: ok, note, warning or error, where error means that the run fails."""
    if finding.blocks:
        return "error"
    return "warning" if finding.level in ("error", "unknown") else finding.level


def _message(finding: Finding) -> str:
    """Return the self-contained message: nodes, fault, places tried, what to do."""
    where = [", ".join(finding.nodes), finding.upstream, finding.file] if finding.nodes else []
    text = ": ".join([*filter(None, where), finding.message])
    text += f"; tried {places(finding.tried)}" if finding.tried else ""
    return one_line(f"{text} (try: {finding.todo})" if finding.todo else text, LONGEST)


def github(shown: Shown) -> str:
    """Render workflow commands, one per line (docs.github.com, "Workflow commands for GitHub Actions").

    Values escape %, CR and LF, properties also ':' and ','; other control characters were made visible before.
    """
    lines = []
    for finding in shown.report.sorted():
        weight = _weight(finding)
        if weight == "ok":
            continue
        place = f"file={_property(finding.file)}," if finding.file and not finding.nodes else ""
        place += f"line={finding.line}," if finding.line is not None else ""
        word = {"note": "notice"}.get(weight, weight)
        lines.append(f"::{word} {place}title={_property(finding.id)}::{_escaped(_message(finding))}")
    for missing in shown.report.not_checked:
        lines.append(
            f"::warning title=not checked::{_escaped(one_line(f'{missing.what}: {places(missing.tried)}', LONGEST))}"
        )
    return "".join(f"{line}\n" for line in lines)


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(one_line(text, LONGEST)).replace(":", "%3A").replace(",", "%2C")


def gitlab(shown: Shown) -> str:
    """Render a code quality report (docs.gitlab.com, "Code Quality").

    The fingerprint excludes the line number, so that a moved line is not a new issue.
    """
    import hashlib

    severities = {"error": "critical", "warning": "minor", "note": "info"}
    seen: Counter[tuple[str, str, str]] = Counter()
    rows = []
    for finding in shown.report.sorted():
        if _weight(finding) == "ok":
            continue
        key = (finding.id, finding.file, _message(finding))
        seen[key] += 1
        rows.append(
            {
                "description": key[2],
                "check_name": one_line(finding.id, LONGEST),
                "fingerprint": hashlib.sha256(json.dumps([*key, seen[key]]).encode()).hexdigest(),
                "severity": severities[_weight(finding)],
                "location": {
                    "path": one_line(finding.file or finding.id, LONGEST),
                    "lines": {"begin": finding.line or 1},
                },
            }
        )
    return json.dumps(rows, indent=2) + "\n"


def sarif(shown: Shown) -> str:
    """Render SARIF 2.1.0 for code scanning: one run, the broken rules, one result each."""
    found = [f for f in shown.report.sorted() if _weight(f) != "ok"]
    driver = {
        "name": "patchctl",
        "version": __version__,
        "rules": [_rule(i, shown) for i in sorted({f.id for f in found})],
    }
    run: dict[str, Any] = {"tool": {"driver": driver}}
    if shown.root is not None:
        run["originalUriBaseIds"] = {"ROOT": {"uri": f"{shown.root.as_uri()}/"}}
    run["results"] = [_sarif_result(f) for f in found]
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return json.dumps({"$schema": schema, "version": "2.1.0", "runs": [run]}, indent=2, ensure_ascii=True) + "\n"


def _rule(name: str, shown: Shown) -> dict[str, Any]:
    known = shown.rules.get(name)
    said = {"shortDescription": {"text": known.holds}, "help": {"text": known.why}} if known else {}
    return {"id": one_line(name, LONGEST), **said}


def _sarif_result(finding: Finding) -> dict[str, Any]:
    return {
        "ruleId": one_line(finding.id, LONGEST),
        "level": _weight(finding),
        "message": {"text": _message(finding)},
        "locations": _sarif_places(finding),
    }


def _sarif_places(finding: Finding) -> list[dict[str, Any]]:
    """Return the file, else nodes or the machine's part as logical locations."""
    from urllib.parse import quote

    if not finding.file or finding.nodes:
        names = [one_line(name, LONGEST) for name in finding.nodes or (finding.id,)]
        return [{"logicalLocations": [{"fullyQualifiedName": name, "kind": "resource"}]} for name in names]
    absolute = Path(finding.file).is_absolute()
    artifact = {"uri": Path(finding.file).as_uri()} if absolute else {"uri": quote(finding.file), "uriBaseId": "ROOT"}
    region = {} if finding.line is None else {"region": {"startLine": finding.line}}
    return [{"physicalLocation": {"artifactLocation": artifact, **region}}]


def junit(shown: Shown) -> str:
    """Render JUnit XML: a failure per error, skipped cases for what could not be checked, passed ones for the rest."""
    report = shown.report
    cases = [_finding_case(f) for f in report.sorted()]
    cases += [_case("not-checked", n.what, "skipped", places(n.tried)) for n in report.not_checked]
    cases += [_case(shown.verb, f"{n} {what}") for what, n in sorted(report.counts.items())]
    skipped = len(report.not_checked) + sum(f.level == "unknown" and not f.blocks for f in report.findings)
    counts = f'tests="{len(cases)}" failures="{len(report.errors)}" skipped="{skipped}" errors="0"'
    head = f'<?xml version="1.0" encoding="utf-8"?>\n<testsuites>\n<testsuite name="patchctl" {counts}>\n'
    return head + "".join(cases) + "</testsuite>\n</testsuites>\n"


def _finding_case(finding: Finding) -> str:
    """Render a test case, named by nodes and subject, else by file and line, else by id."""
    file = finding.file if finding.line is None else f"{finding.file}:{finding.line}"
    name = ": ".join(filter(None, [", ".join(finding.nodes), finding.name or file])) or finding.id
    if _weight(finding) == "ok":
        return _case(finding.rule, name)
    result = "failure" if finding.blocks else "skipped" if finding.level == "unknown" else "system-out"
    return _case(finding.rule, name, result, _message(finding))


def _case(group: str, name: str, result: str | None = None, message: str = "") -> str:
    from xml.sax.saxutils import escape, quoteattr

    head = f"<testcase classname={quoteattr(f'patchctl.{group}')} name={quoteattr(one_line(name, LONGEST))}"
    if result is None:
        return f"{head}/>\n"
    if result == "system-out":
        return f"{head}><system-out>{escape(message)}</system-out></testcase>\n"
    return f"{head}><{result} message={quoteattr(one_line(message, LONGEST))}/></testcase>\n"


RENDERERS = {"github": github, "gitlab": gitlab, "sarif": sarif, "junit": junit}
