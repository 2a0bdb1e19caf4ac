"""Text and JSON output of `list`, `show` and `report`. Computes nothing."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

from patchctl.catalog.features import PatchDetail, PatchRow, ProfileRow, ReleaseRow, RequirementRow, StackRow
from patchctl.catalog.overview import Overview
from patchctl.doc import Doc, Spread
from patchctl.terminal.text import Style, patch_count, summarised, visible, visible_line

if TYPE_CHECKING:
    from patchctl.drift.saved import SavedDrift

Rows = Mapping[str, Sequence[Any]]
_WIDTH = 100


@dataclass(frozen=True)
class ListOutput:
    """What `list` prints: the requested kinds."""

    what: Annotated[str, Doc("`overview`, or the requested kind")]
    releases: Annotated[Sequence[ReleaseRow] | None, Doc("releases, newest first", optional=True)] = None
    profiles: Annotated[Sequence[ProfileRow] | None, Doc("profiles, once per supported release", optional=True)] = None
    stacks: Annotated[Sequence[StackRow] | None, Doc("stacks, sorted by upstream", optional=True)] = None
    patches: Annotated[Sequence[PatchRow] | None, Doc("patches, in the order they apply", optional=True)] = None
    requirements: Annotated[Sequence[RequirementRow] | None, Doc("runtime requirements of profiles", optional=True)] = (
        None
    )


def list_text(what: str, rows: Rows, style: Style, *, verbose: bool) -> Iterator[str]:
    """Yield the rows of one kind; of several their names, and with `verbose` a section per kind."""
    if what != "overview":
        return _section(what, rows[what], style)
    return summarised(_names(rows, style), _sections(rows, style), verbose=verbose, more="everything about each")


def _names(rows: Rows, style: Style) -> Iterator[str]:
    names = {
        "releases": [row.name for row in rows["releases"]],
        "profiles": [row.name for row in rows["profiles"]],
        "stacks": [f"{row.upstream} {row.stack} ({patch_count(row.patches)})" for row in rows["stacks"]],
        "patches": [f"{len(rows['patches'])}; `patchctl list patches` has their switches"] if rows["patches"] else [],
        "requirements": [row.name for row in rows["requirements"]],
    }
    for kind, found in names.items():
        yield style(f"{kind:<12}", bold=True) + "  " + (", ".join(dict.fromkeys(found)) or style.note("none"))
    yield "next: patchctl list profiles"


def _sections(rows: Rows, style: Style) -> Iterator[str]:
    for number, (kind, found) in enumerate(rows.items()):
        if number:
            yield ""
        yield style(kind, bold=True)
        yield from _section(kind, found, style)


def _section(kind: str, found: Sequence[Any], style: Style) -> Iterator[str]:
    yield from _SECTIONS[kind](found, style)
    if not found:
        yield style.note("none")


def _releases(rows: Sequence[ReleaseRow], style: Style) -> Iterator[str]:
    for row in rows:
        yield f"{style.good(row.name)}  {visible_line(row.summary)}"
        yield "    " + ", ".join(f"{u} {s}" for u, s in row.stacks.items())
        if row.pinned:
            yield "    pinned " + ", ".join(f"{name} {commit[:12]}" for name, commit in row.pinned.items())
        yield f"    profiles {', '.join(row.profiles) or 'none'}"


def _profiles(rows: Sequence[ProfileRow], style: Style) -> Iterator[str]:
    for row in rows:
        on = f"  on {row.release}" if row.release else ""
        yield f"{style.good(row.name)}{on}  {patch_count(row.patches)}  {visible_line(row.summary)}"
        yield "    " + ", ".join(f"{u} {s}" for u, s in row.stacks.items())
        if row.without:
            yield f"    {style.note('without')} {', '.join(row.without)}"
        if row.runtime:
            yield "    runs on " + ", ".join(f"{name} {version}" for name, version in row.runtime.items())


def _stacks(rows: Sequence[StackRow], style: Style) -> Iterator[str]:
    table = []
    for row in rows:
        form = f"sdist {row.sdist}" if row.sdist else "git alone"
        parent = f"extends {row.extends}" if row.extends else ""
        users = ", ".join(row.profiles) or "no profile"
        table.append((row.upstream, row.stack, row.commit[:12], form, patch_count(row.patches), parent, users))
    yield from columns_of(table)


def _patches(rows: Sequence[PatchRow], style: Style) -> Iterator[str]:
    for stack, of_stack in groupby(rows, key=lambda row: f"{row.upstream} {row.stack}"):
        yield stack
        found = list(of_stack)
        table = [
            (
                f"{r.number:04d}",
                r.feature,
                r.kind,
                ", ".join(r.gain.kind) if r.gain else "",
                visible_line(r.switch or ""),
                visible_line(r.subject),
            )
            for r in found
        ]
        yield from (f"    {line}" for line in columns_of(table))
        for row in found:
            if not row.profiles:
                yield f"    {style.note('in no profile')}: {row.feature}"


def _requirements(rows: Sequence[RequirementRow], style: Style) -> Iterator[str]:
    table = []
    for row in rows:
        versions = dict.fromkeys(row.versions.values())
        by_profile = "; ".join(
            v if len(versions) == 1 else f"{v} ({', '.join(p for p, w in row.versions.items() if w == v)})"
            for v in versions
        )
        table.append((row.name, row.kind, by_profile or "wanted by no profile", visible_line(row.summary)))
    yield from columns_of(table)


_SECTIONS: Mapping[str, Callable[[Any, Style], Iterator[str]]] = {
    "releases": _releases,
    "profiles": _profiles,
    "stacks": _stacks,
    "patches": _patches,
    "requirements": _requirements,
}


def columns_of(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield columns at their minimum width; the last is not padded, empty ones are omitted."""
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))] if rows else []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True) if width]
        yield "  ".join(cells).rstrip()


@dataclass(frozen=True)
class ShowOutput:
    """What `show` prints."""

    patches: Annotated[Sequence[PatchDetail], Doc("one patch per upstream that the feature spans")]


def show_text(details: Sequence[PatchDetail], style: Style) -> Iterator[str]:
    """Yield each patch, separated by empty lines."""
    for number, detail in enumerate(details):
        if number:
            yield ""
        yield from _detail(detail, style)
        if detail.diff is not None:
            yield ""
            yield from (_coloured(line, style) for line in visible(detail.diff).split("\n"))


def _detail(detail: PatchDetail, style: Style) -> Iterator[str]:
    yield f"{style.good(detail.feature)}  {visible_line(detail.subject)}"
    yield f"  file             {detail.file}"
    for stack in detail.stacks:
        sdist = f", sdist {stack.sdist}" if stack.sdist else ""
        yield f"  stack            {stack.upstream} {stack.stack}  (commit {stack.commit}{sdist})"
    if detail.row is None:
        yield f"  stack            {style.note('none lists this file')}"
    gain = detail.row.gain if detail.row else None
    facts: list[tuple[str, str | None]] = []
    if gain:
        facts = [("brings", f"{gain.what} ({', '.join(gain.kind)})" + (f", {gain.page}" if gain.page else ""))]
    facts += [
        ("profiles", ", ".join(detail.profiles)),
        ("switch", detail.switch),
        ("upstream status", detail.upstream_status),
        ("drop when", detail.drop_when),
        ("requires", ", ".join(detail.requires)),
        ("required by", ", ".join(detail.required_by)),
        ("tests", ", ".join(detail.tests)),
        ("mutations", ", ".join(detail.mutants)),
        ("author", detail.author),
        ("digest", detail.digest),
    ]
    yield from (f"  {name:<16} {visible_line(text) if text else style.note('none')}" for name, text in facts)
    for title, text in (("need", detail.need), ("change", detail.change), ("risk", detail.risk)):
        if text:
            yield f"  {title}"
            yield from _paragraphs(text)
    yield "  files"
    table = []
    for row in detail.files:
        counts = ("binary", "") if row.added is None else (f"+{row.added}", f"-{row.removed}")
        table.append((*counts, visible_line(row.path), "" if row.change == "modify" else row.change))
    yield from (f"    {line}" for line in columns_of(table))


def _paragraphs(text: str) -> Iterator[str]:
    """Yield rewrapped paragraphs; lists keep their lines."""
    for number, paragraph in enumerate(visible(text).split("\n\n")):
        if number:
            yield ""
        if any(line.lstrip().startswith(("- ", "* ")) for line in paragraph.split("\n")):
            yield from (f"    {line}" for line in paragraph.split("\n"))
        else:
            yield from textwrap.wrap(paragraph, _WIDTH, initial_indent="    ", subsequent_indent="    ")


def _coloured(line: str, style: Style) -> str:
    if line.startswith("+"):
        return style.good(line)
    return style(line, fg="red") if line.startswith("-") else style(line, fg="cyan") if line.startswith("@@") else line


@dataclass(frozen=True)
class ReportOutput:
    """What `report` prints: the contents of the page, except the matrix."""

    file: Annotated[str, Doc("path of the generated page")]
    seen: Annotated[Overview, Spread()]
    drift_problem: Annotated[
        str | None, Doc("with `--drift`: why that run failed, which leaves the page without a matrix; null otherwise")
    ]


def written_text(file: str, seen: Overview, saved: SavedDrift | None, style: Style) -> Iterator[str]:
    """Yield where the page is, and what it covers."""
    of = f"profile {seen.profile}" if seen.profile else "all profiles"
    yield f"{style.good('written')}  {visible_line(file)}  {of}, {patch_count(len(seen.patches))}"
    if saved is None:
        yield "without a drift matrix: `patchctl drift --matrix --json >FILE`, then --drift FILE"
    elif saved.problem is not None:
        yield f"without a drift matrix, as that run came to nothing: {visible_line(saved.problem)}"
