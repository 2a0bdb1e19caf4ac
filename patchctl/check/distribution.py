"""`patchctl verify` without a workspace: everything that can be said of a distribution, from nothing but its files and
the sources that it pins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from patchctl import extension
from patchctl.check.counts import check_counts
from patchctl.check.left_over import check_generated, check_left_over
from patchctl.check.locked import check_locks
from patchctl.check.pages import check_pages
from patchctl.check.requirements import check_requirements
from patchctl.check.series import Series, check_series, read_series
from patchctl.check.sources import check_sources
from patchctl.check.tested import check_begun, check_proven, check_tested
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
    alone: bool = False,
) -> Report:
    """Checks manifests, patches, locks, what extensions add, pages (`pages` are those of the caller), and with `options` every form
    of every source that can be had.

    With `proven` a feature without a record that holds is an error, with `alone` one that needs more than it requires. Raises
    SourceMismatch for a source that is not what was pinned, a changed file in the cache included.
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
    report.add(check_left_over(dist))
    report.add(check_generated(dist))
    for name in (name for other in extension.registered() for name in other.checks):
        check: Check = extension.load(name)
        check(dist, series, report)
    check_requirements(dist, report)
    report.add(check_pages(dist, series, pages, strict=False))
    check_sources(dist, series, options, progress, report, alone=alone)
    return report


def _counts(dist: Distribution, series: Series) -> Iterator[Finding]:
    for file, patch in series.patches.items():
        yield from check_counts(patch, file.relative_to(dist.root).parts[1])
