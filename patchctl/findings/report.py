"""The result of a check: findings, what could not be checked, and counts.

Used by `check` for files and trees, `doctor` and `preflight` for machines, `cluster` for nodes. Standard library
only, as cluster nodes have nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Literal

from patchctl.doc import Doc
from patchctl.errors import DONE, FINDINGS, PatchctlError, SourceUnavailable, Tried
from patchctl.terminal.text import visible_line

Level = Literal["ok", "note", "warning", "error", "unknown"]


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
    patch: Annotated[str | None, Doc("patch file", line=True)] = None
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
