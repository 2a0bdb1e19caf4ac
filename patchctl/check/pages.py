"""Writes or checks what is generated for people and editors: pages, tables, JSON Schemas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from patchctl.atomic import replace_file
from patchctl.catalog.pages import FOLDER, MARK, entries_of, pages
from patchctl.check.patch_rules import Scope
from patchctl.check.rules import all_rules
from patchctl.check.series import Series, read_series
from patchctl.findings import Finding, Report
from patchctl.manifest import schema
from patchctl.manifest.distribution import Distribution

_WRITE = "`patchctl lock --pages` writes it"
RULES_PAGE = "docs/lint-rules.md"
_SCOPES: Mapping[Scope, str] = {
    "patch": "Of one patch file",
    "distribution": "Of the whole distribution",
    "source": "With a source of the pin",
    "workspace": "Of a workspace (`verify --workspace`)",
}


@dataclass(frozen=True)
class Documents:
    """What has to be written, as text by path below the root; and pages and schemas of what no longer exists."""

    changed: dict[str, str]
    obsolete: tuple[str, ...]


@dataclass(frozen=True)
class WrittenPages:
    """What a run wrote and removed, by path below the root, and what it found wrong."""

    report: Report
    written: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


def write_documents(dist: Distribution, more: Mapping[str, str], *, check: bool, strict: bool) -> WrittenPages:
    """Bring every generated page, table and schema in step, or with `check` report what is not. `more` are those of the caller.

    Unless `strict`, a distribution without docs/patches/ keeps no pages of patches. Nothing is written while a patch cannot
    be read: that is reported.
    """
    report = Report()
    series = read_series(dist, report)
    report.counts["patches"] = len(series.patches)
    if not strict and not (dist.root / FOLDER).is_dir():
        report = Report()  # `verify` says what is wrong with patches; here nothing is made of them
    if check:
        report.add(check_pages(dist, series, more, strict=strict))
        return WrittenPages(report)
    if series.broken:
        return WrittenPages(report)
    documents = plan_documents(dist, series, more, strict=strict)
    for path, text in documents.changed.items():
        replace_file(dist.root / path, text.encode())
    for path in documents.obsolete:
        (dist.root / path).unlink()
    return WrittenPages(report, tuple(sorted(documents.changed)), documents.obsolete)


def plan_documents(dist: Distribution, series: Series, more: Mapping[str, str], *, strict: bool) -> Documents:
    """Compares every generated page, table and schema with the disk."""
    entries = entries_of(dist, series.patches)
    wanted = pages(dist, entries) | {**more}
    if (dist.root / RULES_PAGE).is_file():
        wanted[RULES_PAGE] = rules_page()
    if not strict and not (dist.root / FOLDER).is_dir():
        wanted = {path: text for path, text in wanted.items() if not path.startswith(f"{FOLDER}/")}
    found = (f for f in (dist.root / FOLDER).rglob("*.md") if f.is_file())
    pages_there = (f for f in found if _is_generated(f))
    schemas = {(dist.root / path).parent for path in more if path.endswith(".json")}
    schemas_there = (f for folder in schemas for f in folder.glob("*.json"))
    names = (f.relative_to(dist.root).as_posix() for f in (*pages_there, *schemas_there))
    obsolete = tuple(sorted(n for n in names if n not in wanted))
    if (dist.root / schema.FOLDER).is_dir():
        wanted |= {path.as_posix(): text for path, text in schema.texts().items()}
    changed = {path: text for path, text in wanted.items() if _read(dist.root / path) != text}
    return Documents(changed, obsolete)


def check_pages(dist: Distribution, series: Series, more: Mapping[str, str], *, strict: bool) -> Iterator[Finding]:
    """A finding for each page that would differ. Unless `strict`, a distribution without docs/patches/ has none."""
    if series.broken:
        return  # a patch that cannot be read has no page, and its page is not obsolete
    documents = plan_documents(dist, series, more, strict=strict)
    for path in sorted(documents.changed):
        what = "is not as generated" if (dist.root / path).exists() else "is missing"
        rule, kind = ("schema-stale", "schema") if path.startswith("manifests/") else ("page-stale", "page")
        yield Finding(rule, f"the {kind} {what}: {_WRITE}", path)
    for path in documents.obsolete:
        yield Finding(
            "page-stale", "documents a patch or verb that is not there: `patchctl lock --pages` removes it", path
        )


def _read(path: Path) -> str | None:
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except (FileNotFoundError, IsADirectoryError):
        return None


def _is_generated(path: Path) -> bool:
    return (_read(path) or "").startswith(MARK)


def rules_page() -> str:
    """docs/lint-rules.md: every rule, from the tables of the rules."""
    lines = [
        "<!-- generated by `patchctl lock` from patchctl/check/rules.py and patch_rules.py, and from what extensions add -->",
        "",
        "# What `patchctl verify` checks",
        "",
        "A finding fails the run (exit code 1), a note does not. Each rule of one patch file has a good and a bad sample in",
        "`tests/lint/RULE/`.",
    ]
    rules = all_rules().values()
    for scope, title in _SCOPES.items():
        lines += ["", f"## {title}", "", "| rule | what must hold | why |", "|---|---|---|"]
        lines += [f"| `{r.id}` | {_cell(r.holds)} | {_cell(r.why)} |" for r in rules if r.scope == scope]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
