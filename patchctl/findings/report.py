"""What a look at something says: findings, what could not be looked at and where it was sought, and how much was looked at.

Every room speaks these words: `check` of files and trees, `doctor` and `preflight` of machines, `cluster` of nodes. Nodes of a
cluster have the standard library alone.
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
    """One thing that was looked at, and how it is. `rule` is an id of docs/lint-rules.md or docs/cluster.md; of a machine the
    area, and `name` what was looked at there.

    `level`: ok; a note to know; a warning; an error; unknown, where nobody could look. `needed` says whether a run stops, or
    goes wrong, where it is not as it should be; `accepted` that the user goes on all the same. `file` is a path below the
    distribution's root, or in a workspace a path that a person can open; `line` counts from 1. `nodes` are those of a cluster
    that have it, and `reference` what they were held against: lock, profile, recipe, majority or nothing. `todo` is what to do
    about it, `tried` the places that did not have it.
    """

    rule: Annotated[str, Doc("an id of lint-rules.md", line=True)]
    message: Annotated[str, Doc("the fault", line=True)]
    file: Annotated[str, Doc("where", line=True)] = ""
    line: Annotated[int | None, Doc("from 1")] = None
    level: Annotated[Level, Doc("error or note", key="severity")] = "error"
    upstream: Annotated[str | None, Doc("whose", line=True)] = None
    patch: Annotated[str | None, Doc("the patch's file", line=True)] = None
    name: str = ""
    nodes: tuple[str, ...] = ()
    reference: str | None = None
    todo: str | None = None
    needed: bool = True
    accepted: bool = False
    tried: tuple[Tried, ...] = ()

    @property
    def blocks(self) -> bool:
        """Whether it fails the run. What is needed has to be known, too: nothing is taken for fine because nobody could look."""
        return self.needed and not self.accepted and self.level in ("error", "unknown")

    @property
    def id(self) -> str:
        """What it is about, as one word for programs: `lock`, `host/open files`."""
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
    """What was found of one thing of a machine."""
    return Finding(area, message, level=level, name=name, todo=todo, needed=needed, tried=tried)


@dataclass(frozen=True)
class NotChecked:
    """Something that was to be checked and could not be had."""

    what: Annotated[str, Doc("what was to be checked")]
    tried: tuple[Tried, ...]
    stack: Annotated[str | None, Doc("upstream and name")] = None

    @property
    def places(self) -> Annotated[list[tuple[str, str]], Doc("every place and why it did not do", key="tried")]:
        return [(t.place, visible_line(t.reason)) for t in self.tried]


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
        return [f for f in self.findings if f.blocks]

    def sorted(self) -> list[Finding]:
        """The findings by place, those of a machine as they came; the same run gives the same order everywhere."""
        return sorted(self.findings, key=lambda f: ("", 0) if f.name else (f.file, f.line or 0, f.rule, f.message))

    def exit_code(self, *, skip_unavailable: bool = False) -> int:
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
