"""What is generated for people and editors (pages, tables, JSON Schemas): in step with what it comes from, or brought so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from patchctl.atomic import replace_file
from patchctl.catalog.pages import FOLDER, GENERATED, entries_of, pages
from patchctl.check.rules_page import RULES_PAGE, rules_page
from patchctl.check.series import Series, read_series
from patchctl.findings.report import Finding, Report
from patchctl.manifest import schema
from patchctl.manifest.distribution import Distribution

_WRITE = "`patchctl docs` writes it"


@dataclass(frozen=True)
class Documents:
    """What is to be written: text by path below the root; and pages of patches that are gone."""

    changed: dict[str, str]
    obsolete: tuple[str, ...]


@dataclass(frozen=True)
class Written:
    """What a run wrote and removed, by path below the root, and what it found wrong."""

    report: Report
    written: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


def write_documents(dist: Distribution, more: Mapping[str, str], *, check: bool, strict: bool) -> Written:
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
        return Written(report)
    if series.broken:
        return Written(report)
    documents = plan_documents(dist, series, more, strict=strict)
    for path, text in documents.changed.items():
        replace_file(dist.root / path, text.encode())
    for path in documents.obsolete:
        (dist.root / path).unlink()
    return Written(report, tuple(sorted(documents.changed)), documents.obsolete)


def plan_documents(dist: Distribution, series: Series, more: Mapping[str, str], *, strict: bool) -> Documents:
    """Compares every generated page, table and schema with the disk."""
    entries = entries_of(dist, series.patches)
    wanted = pages(dist, entries) | {**more}
    if (dist.root / RULES_PAGE).is_file():
        wanted[RULES_PAGE] = rules_page()
    if not strict and not (dist.root / FOLDER).is_dir():
        wanted = {path: text for path, text in wanted.items() if not path.startswith(f"{FOLDER}/")}
    found = (f for f in (dist.root / FOLDER).rglob("*.md") if f.is_file())
    names = (f.relative_to(dist.root).as_posix() for f in found if _is_generated(f))
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
        yield Finding("page-stale", "the page is of a patch that is not there: `patchctl docs` removes it", path)


def _read(path: Path) -> str | None:
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except (FileNotFoundError, IsADirectoryError):
        return None


def _is_generated(path: Path) -> bool:
    return (_read(path) or "").startswith(GENERATED)
