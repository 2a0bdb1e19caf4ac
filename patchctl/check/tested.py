"""Whether each patch has a behaviour test, and a mutation that proves the test: what the README promises of every one."""

from __future__ import annotations

from collections.abc import Iterator

from patchctl.catalog.features import mutants_of, tests_of
from patchctl.check.series import Series
from patchctl.findings.report import Finding
from patchctl.manifest.distribution import Distribution

FOLDER = "tests/behaviour"


def check_tested(dist: Distribution, series: Series) -> Iterator[Finding]:
    """Nothing of a distribution without that folder: it has its tests elsewhere, or none."""
    if not (dist.root / FOLDER).is_dir():
        return
    for file, patch in series.patches.items():
        upstream = file.relative_to(dist.root).parts[1]
        lacking = [] if tests_of(dist.root, patch.feature, upstream) else [_test(patch.feature, upstream)]
        lacking += [] if mutants_of(dist.root, patch.feature, upstream) else [_mutation(patch.feature, upstream)]
        for what in lacking:
            line = patch.header.trailers["Feature"][0].line if "Feature" in patch.header.trailers else 1
            yield Finding("tested", what, patch.shown, line, "error", upstream, patch.feature)


def _test(feature: str, upstream: str) -> str:
    return f"has no behaviour test; {FOLDER}/{upstream.replace('-', '_')}/test_{feature}.py is looked for"


def _mutation(feature: str, upstream: str) -> str:
    return f"has no mutation; {FOLDER}/mutants/{feature}.yaml with `upstream: {upstream}` is looked for"
