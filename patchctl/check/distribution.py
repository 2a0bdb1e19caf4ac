"""`patchctl verify` without a workspace: every check of a distribution, from its files and the sources that it pins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from patchctl import extension
from patchctl.check.diff_rules import check_counts
from patchctl.check.locked import check_locks, check_requirements
from patchctl.check.pages import check_pages
from patchctl.check.series import Series, check_generated, check_series, read_series
from patchctl.check.sources import check_sources
from patchctl.check.tested import check_begun, check_orphans, check_proven, check_tested
from patchctl.findings.report import Finding, Report
from patchctl.manifest.distribution import Distribution
from patchctl.source.types import SourceOptions
from patchctl.terminal.progress import Progress

Check = Callable[[Distribution, Series, Report], None]
"""A check of an extension: adds its findings, and how much it looked at."""


def verify_distribution(
    dist: Distribution,
    options: SourceOptions | None,
    progress: Progress,
    pages: Mapping[str, str],
    *,
    proven: bool = False,
    isolated: bool = False,
) -> Report:
    """Check manifests, patches, locks, extensions, pages, and with `options` every available form of every source.

    With `proven` a feature without a valid record is an error, with `isolated` one that needs more than it requires. Raises
    SourceMismatch for a source that is not what was pinned, also for a changed file in the cache.
    """
    report = Report()
    series = read_series(dist, report)
    report.counts.update(stacks=len(dist.stacks), profiles=len(dist.variants), patches=len(series.patches))
    report.add(check_series(dist, series))
    report.add(check_locks(dist, series))
    report.add(_counts(dist, series))
    report.add(check_tested(dist, series))
    report.add(check_proven(dist, series, required=proven))
    report.add(check_begun(dist))
    report.add(check_orphans(dist))
    report.add(check_generated(dist))
    for name in (name for other in extension.registered() for name in other.checks):
        check: Check = extension.load(name)
        check(dist, series, report)
    check_requirements(dist, report)
    report.add(check_pages(dist, series, pages, strict=False))
    check_sources(dist, series, options, progress, report, isolated=isolated)
    return report


def lint_distribution(dist: Distribution) -> Report:
    """Check the patch files alone: each by its rules, and as series. Takes a second, and lets locks, pages and proofs be stale."""
    report = Report()
    series = read_series(dist, report)
    report.counts.update(stacks=len(dist.stacks), profiles=len(dist.variants), patches=len(series.patches))
    report.add(check_series(dist, series))
    return report


def _counts(dist: Distribution, series: Series) -> Iterator[Finding]:
    for file, patch in series.patches.items():
        yield from check_counts(patch, file.relative_to(dist.root).parts[1])
