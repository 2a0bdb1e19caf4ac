"""The result of a check: findings, what could not be checked, and counts; and their forms: text, the JSON of docs/json.md, and those of CI
systems, which are GitHub annotations, GitLab code quality, SARIF and JUnit.

Used by `check` for files and trees, `doctor` and `preflight` for machines, `cluster` for nodes. Standard library only, as cluster nodes have
nothing else. Messages and names may come from an untrusted patch file. Renderers escape control characters first, so that no
finding can start a line of its own, steer a terminal or send commands to a CI runner.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

from patchctl import __version__
from patchctl.doc import Doc
from patchctl.errors import DONE, FINDINGS, PatchctlError, SourceUnavailable, Tried
from patchctl.language import message, translated
from patchctl.terminal.text import Style, columns, counted, one_line, padded, visible_line

Level = Literal["ok", "note", "warning", "error", "unknown"]
LONGEST = 1000
_LONGEST_NAME = 25


@dataclass(frozen=True)
class Finding:
    """The result of checking one thing.

    `rule` is an id of docs/lint-rules.md or docs/cluster.md; for a machine the area, with `name` the thing checked.
    `level` is ok, note, warning, error, or unknown if it could not be checked. `needed`: a run stops or goes wrong
    unless it is ok; `accepted`: the user continues anyway. `file` is below the distribution's root, or a workspace
    path that a person can open; `line` counts from 1. `nodes` are cluster nodes with this finding, `reference` what
    they were compared with: lock, profile, recipe, majority or None. `todo` says what to do, `tried` lists places
    that did not have it.
    """

    rule: Annotated[str, Doc("rule id from lint-rules.md", line=True)]
    message: Annotated[str, Doc("description of the finding", line=True)]
    file: Annotated[str, Doc("file path; empty if none", line=True)] = ""
    line: Annotated[int | None, Doc("line number, from 1")] = None
    level: Annotated[Level, Doc("`error` or `note`", key="severity")] = "error"
    upstream: Annotated[str | None, Doc("upstream name", line=True)] = None
    patch: Annotated[str | None, Doc("patch file, or the patch's feature where `file` is that file", line=True)] = None
    name: str = ""
    nodes: tuple[str, ...] = ()
    reference: str | None = None
    todo: str | None = None
    needed: bool = True
    accepted: bool = False
    tried: tuple[Tried, ...] = ()

    @property
    def blocks(self) -> bool:
        """Whether it fails the run. What is needed must also be known: unknown is not ok."""
        return self.needed and not self.accepted and self.level in ("error", "unknown")

    @property
    def id(self) -> str:
        """Its subject as one word for programs: `lock`, `host/open files`."""
        return f"{self.rule}/{self.name}" if self.name else self.rule


def looked_at(
    area: str,
    name: str,
    level: Level,
    message: str,
    todo: str | None = None,
    needed: bool = True,
    tried: tuple[Tried, ...] = (),
) -> Finding:
    """Build a finding about one thing of a machine."""
    return Finding(area, message, level=level, name=name, todo=todo, needed=needed, tried=tried)


def judged(area: str, name: str, level: Level, message: str, todo: str | None, needed: bool = True) -> Finding:
    """Build one as `looked_at` does, with what to do and whether it is needed only where it is not ok."""
    return looked_at(area, name, level, message, *((todo, needed) if level != "ok" else ()))


@dataclass(frozen=True)
class NotChecked:
    """Something that could not be checked, with every place tried."""

    what: Annotated[str, Doc("item that could not be checked")]
    tried: tuple[Tried, ...]
    stack: Annotated[str | None, Doc("stack, as UPSTREAM/STACK")] = None

    @property
    def places(
        self,
    ) -> Annotated[list[tuple[str, str]], Doc("sources tried, with the reason for each failure", key="tried")]:
        return [(t.place, visible_line(t.reason)) for t in self.tried]


@dataclass
class Report:
    """Everything that one run found. `counts` says how many of each kind were checked.

    `unseen` names stacks without any available form.
    """

    findings: list[Finding] = field(default_factory=list)
    not_checked: list[NotChecked] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    unseen: list[str] = field(default_factory=list)

    def add(self, findings: Iterable[Finding]) -> None:
        self.findings.extend(findings)

    @property
    def errors(self) -> list[Finding]:
        return [f for f in self.findings if f.blocks]

    def sorted(self) -> list[Finding]:
        """Return findings by place, a machine's in their order; the same run gives the same order everywhere."""
        return sorted(self.findings, key=lambda f: ("", 0) if f.name else (f.file, f.line or 0, f.rule, f.message))

    def exit_code(self, *, skip_unavailable: bool = False) -> int:
        """Return 1 with errors; else 3 if a stack had no available form, unless that is accepted; else 0."""
        if self.errors:
            return FINDINGS
        if self.unseen and not skip_unavailable:
            return SourceUnavailable.code
        return DONE


def from_error(rule: str, error: PatchctlError, file: str, upstream: str | None = None) -> Finding:
    """Convert an exception into a finding at its place, else in `file`."""
    where = error.where
    message = error.what if error.hint is None else f"{error.what} ({error.hint})"
    return Finding(rule, message, where.file if where else file, where.line if where else None, upstream=upstream)


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


# Which are named one by one; GitHub shows ten annotations of a step.
_FEW = 3


def report_text(report: Report, style: Style, *, quiet: bool = False, verbose: bool = False) -> Iterator[str]:
    """Yield a summary, findings by file, those with errors first, then what was not checked and the places tried."""
    if not quiet:
        yield summary(report, style)
    wrong = {finding.file for finding in report.errors}
    for file, found in groupby(sorted(report.sorted(), key=lambda f: f.file not in wrong), key=lambda f: f.file):
        # CI runners read a line that starts with :: or ##[ as a command.
        shown = visible_line(file)
        yield style(f"./{shown}" if shown.startswith((":", "#")) else shown, bold=True)
        yield from (_finding_text(finding, style) for finding in found)
    if not quiet:
        few = len(report.not_checked) if verbose else _FEW
        yield from (f"{style.note('not checked')}: {line}" for line in not_checked(report, few, "-v"))


def not_checked(report: Report, few: int = _FEW, told_by: str = "--json") -> list[str]:
    """What was not checked and the places tried; of more than `few` the places of the first alone, in one line."""
    missing = report.not_checked
    if len(missing) <= few:
        return [f"{visible_line(one.what)}: {places(one.tried)}" for one in missing]
    names = ", ".join(visible_line(one.what) for one in missing)
    return [f"{len(missing)}, as {told_by} tells in full: {names}; tried for the first: {places(missing[0].tried)}"]


def _finding_text(finding: Finding, style: Style) -> str:
    mark = style.bad("error") if finding.level == "error" else style.note("note ")
    line = "" if finding.line is None else str(finding.line)
    return f"  {line:>5}  {mark}  {one_line(finding.message, LONGEST)}  {style(f'[{finding.rule}]', dim=True)}"


def places(tried: Sequence[Tried]) -> str:
    """Return every place tried, with its reason."""
    return "; ".join(f"{visible_line(t.place)} ({one_line(t.reason)})" for t in tried)


def summary(report: Report, style: Style) -> str:
    """Return the first line: how much was checked, found, and not checked."""
    errors, notes = len(report.errors), len(report.findings) - len(report.errors)
    checked = ", ".join(_counted(n, what) for what, n in sorted(report.counts.items())) or "manifests only"
    found = style.bad(counted(errors, "error")) if errors else style.good("no errors")
    rest = [counted(notes, "note")] if notes else []
    rest += [f"{len(report.not_checked)} not checked"] if report.not_checked else []
    return f"checked {checked}: {', '.join([found, *rest])}"


def _counted(number: int, what: str) -> str:
    """A count of `what`, which is named in the plural: 1 stack computed again, 2 patches."""
    one = re.sub(r"(patch)es\b|(\w+)s\b", r"\1\2", what, count=1)
    return f"{number} {one if number == 1 else what}"


def machine_text(
    findings: Sequence[Finding],
    areas: Mapping[str, str],
    words: Mapping[str, str],
    style: Style,
    beside: Sequence[Finding] = (),
) -> Iterator[str]:
    """Yield one line per finding by area (name to title), with what to do below it. `words` translates levels; columns are as wide
    as those of `beside`, which are printed elsewhere."""
    shown = {level: translated(word) for level, word in words.items()}
    wide, width = max(map(columns, shown.values())), min(_LONGEST_NAME, max(len(f.name) for f in [*findings, *beside]))
    for area, title in areas.items():
        rows = [f for f in findings if f.rule == area]
        if rows:
            yield style(translated(title), bold=True)
        for row in rows:
            paint = style.bad if row.blocks else style.good if row.level == "ok" else style.note
            word = paint(padded(shown[row.level], wide))
            yield f"  {word}  {visible_line(row.name):<{width}}  {visible_line(translated(row.message))}"
            if row.level != "ok":
                below = f"  {'':{wide}}  {'':<{width}}"
                notes = [message("tried {place}: {reason}", place=t.place, reason=t.reason) for t in row.tried]
                notes += [message("try: {todo}", todo=row.todo)] if row.todo else []
                yield from (f"{below}  {visible_line(translated(note))}" for note in notes)


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


def _below_top(shown: Shown) -> Path:
    """The root as a CI system reads it, from the top of the repository, in which a distribution may be a subfolder."""
    top = Path(os.environ.get("GITHUB_WORKSPACE") or os.environ.get("CI_PROJECT_DIR") or Path.cwd()).resolve()
    return shown.root.relative_to(top) if shown.root and shown.root.is_relative_to(top) else Path()


def github(shown: Shown) -> str:
    """Render workflow commands, one per line (docs.github.com, "Workflow commands for GitHub Actions").

    Values escape %, CR and LF, properties also ':' and ','; other control characters were made visible before.
    """
    lines, below = [], _below_top(shown)
    for finding in shown.report.sorted():
        weight = _weight(finding)
        if weight == "ok":
            continue
        file = (below / finding.file).as_posix()
        place = f"file={_property(file)}," if finding.file and not finding.nodes else ""
        place += f"line={finding.line}," if finding.line is not None else ""
        word = {"note": "notice"}.get(weight, weight)
        lines.append(f"::{word} {place}title={_property(finding.id)}::{_escaped(_message(finding))}")
    lines += [f"::warning title=not checked::{_escaped(one_line(text, LONGEST))}" for text in not_checked(shown.report)]
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
    rows, below = [], _below_top(shown)
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
                    "path": one_line((below / finding.file).as_posix() if finding.file else finding.id, LONGEST),
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
# What was not checked has no place in these: a job would end with 3 and no reason.
UNTOLD = ("gitlab", "sarif")
