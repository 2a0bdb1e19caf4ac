"""`patchctl verify` without a workspace: everything that can be said of a distribution, from nothing but its files and
the sources that it pins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from patchctl.check.counts import check_counts
from patchctl.check.locked import check_locks
from patchctl.check.pages import check_pages
from patchctl.check.requirements import check_requirements
from patchctl.check.series import Series, check_series, read_series
from patchctl.check.sources import check_sources
from patchctl.check.tested import check_tested
from patchctl.findings.report import Finding, Report
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.problems import InvalidManifest
from patchctl.source.types import SourceOptions
from patchctl.terminal.progress import Progress
from patchctl.training.models.published import read_models
from patchctl.training.recipes.check import check_recipes


def verify_distribution(dist: Distribution, options: SourceOptions | None, progress: Progress) -> Report:
    """Checks manifests, patches, locks, recipes, pages, and with `options` every form of every source that can be had.

    Raises SourceMismatch for a source that is not what was pinned, a changed file in the cache included.
    """
    report = Report()
    series = read_series(dist, report)
    report.counts.update(stacks=len(dist.stacks), profiles=len(dist.profiles), patches=len(series.patches))
    report.add(check_series(dist, series))
    report.add(check_locks(dist, series))
    report.add(_counts(dist, series))
    report.add(check_tested(dist, series))
    check_recipes(dist, series, report)
    check_requirements(dist, report)
    report.add(_models(dist).findings)
    report.add(check_pages(dist, series, strict=False))
    check_sources(dist, series, options, progress, report)
    return report


def _models(dist: Distribution) -> Report:
    """The table that `preflight` reads, which nothing else loads."""
    try:
        read_models(dist)
    except InvalidManifest as error:
        return manifest_findings(dist.root, error)
    return Report()


def manifest_findings(root: Path, error: InvalidManifest) -> Report:
    """The faults of manifests that cannot be loaded; with them nothing else can be checked."""
    report = Report()
    for problem in error.problems:
        report.findings.append(Finding("manifest", str(problem), below(root, problem.file), problem.line))
    return report


def below(root: Path, shown: str) -> str:
    """A path as messages show it (relative to the current folder, or in full) as a path below the root."""
    full = (Path.cwd() / shown).resolve()
    return full.relative_to(root).as_posix() if full.is_relative_to(root) else shown


def _counts(dist: Distribution, series: Series) -> Iterator[Finding]:
    for file, patch in series.patches.items():
        yield from check_counts(patch, file.relative_to(dist.root).parts[1])
