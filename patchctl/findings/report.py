"""What a check says: findings, what could not be checked and where it was looked for, and how much was checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from patchctl.errors import DONE, FINDINGS, PatchctlError, SourceUnavailable, Tried

Severity = Literal["error", "note"]


@dataclass(frozen=True)
class Finding:
    """One fault, or with severity "note" something to know that fails nothing. `rule` is an id of check.rules.

    `file` is a path below the distribution's root, or in a workspace a path that a person can open; `line` counts from 1.
    """

    rule: str
    message: str
    file: str
    line: int | None = None
    severity: Severity = "error"
    upstream: str | None = None
    patch: str | None = None


@dataclass(frozen=True)
class NotChecked:
    """Something that was to be checked and could not be had, with every place tried. `stack` is "upstream name"."""

    what: str
    tried: tuple[Tried, ...]
    stack: str | None = None


@dataclass
class Report:
    """Everything that one run found. `counts` says of each kind of thing how many were looked at.

    `unseen` names the stacks of which no form could be had at all.
    """

    findings: list[Finding] = field(default_factory=list)
    not_checked: list[NotChecked] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    unseen: list[str] = field(default_factory=list)

    def add(self, findings: Iterable[Finding]) -> None:
        self.findings.extend(findings)

    @property
    def errors(self) -> list[Finding]:
        return [f for f in self.findings if f.severity == "error"]

    def sorted(self) -> list[Finding]:
        """The findings by place; the same run gives the same order everywhere."""
        return sorted(self.findings, key=lambda f: (f.file, f.line or 0, f.rule, f.message))

    def exit_code(self, *, skip_unavailable: bool) -> int:
        """1 with errors; else 3 when a stack had no form that could be had, unless that is accepted; else 0."""
        if self.errors:
            return FINDINGS
        if self.unseen and not skip_unavailable:
            return SourceUnavailable.code
        return DONE


def from_error(rule: str, error: PatchctlError, file: str, upstream: str | None = None) -> Finding:
    """An exception of the tool as a finding, at the place that it names, else in `file`."""
    where = error.where
    message = error.what if error.hint is None else f"{error.what} ({error.hint})"
    return Finding(rule, message, where.file if where else file, where.line if where else None, upstream=upstream)
