"""Whether what is generated for people and editors (pages, tables, JSON Schemas) is in step with what it comes from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from patchctl.atomic import replace_file
from patchctl.catalog import links
from patchctl.catalog.pages import FOLDER, GENERATED, entries_of, pages, tables
from patchctl.check.series import Series
from patchctl.findings.report import Finding
from patchctl.manifest import schema
from patchctl.manifest.distribution import Distribution

_WRITE = "`patchctl docs` writes it"


@dataclass(frozen=True)
class Documents:
    """What `patchctl docs` is to write: text by path below the root; and pages of patches that are gone."""

    changed: dict[str, str]
    obsolete: tuple[str, ...]


def plan_documents(dist: Distribution, series: Series) -> Documents:
    """Compares every generated page, table and schema with the disk."""
    entries = entries_of(dist, series.patches)
    wanted = pages(dist.root, entries, dist.practice) | tables(dist.root, entries)
    if (dist.root / links.PAGE).is_file():
        wanted[links.PAGE] = links.links_page(dist.root, wanted)
    if (dist.root / schema.FOLDER).is_dir():
        wanted |= {path.as_posix(): text for path, text in schema.texts().items()}
    changed = {path: text for path, text in wanted.items() if _read(dist.root / path) != text}
    found = (f for f in (dist.root / FOLDER).rglob("*.md") if f.is_file())
    names = (f.relative_to(dist.root).as_posix() for f in found if _is_generated(f))
    return Documents(changed, tuple(sorted(n for n in names if n not in wanted)))


def write_documents(root: Path, documents: Documents) -> None:
    """Brings the disk in step."""
    for path, text in documents.changed.items():
        replace_file(root / path, text.encode())
    for path in documents.obsolete:
        (root / path).unlink()


def check_pages(dist: Distribution, series: Series, *, strict: bool) -> Iterator[Finding]:
    """A finding for each page that would differ. Unless `strict`, a distribution without docs/patches/ has none."""
    if series.broken:
        return  # a patch that cannot be read has no page, and its page is not obsolete
    documents = plan_documents(dist, series)
    kept = strict or (dist.root / FOLDER).is_dir()
    for path in sorted(documents.changed):
        if path.startswith(f"{FOLDER}/") and not kept:
            continue
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
