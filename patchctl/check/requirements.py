"""Whether the locks of requirements follow from trees, profiles and recipes: from files alone, without a network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from patchctl.check.manifests import below, manifest_findings
from patchctl.errors import BadManifest
from patchctl.findings.report import Finding, Report, from_error
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.problems import InvalidManifest
from patchctl.manifest.requirement_types import PLATFORMS
from patchctl.requirements.declared import FILE, read_declared, stale
from patchctl.requirements.inputs import inputs_of
from patchctl.requirements.lockfile import lock_path, read_lock
from patchctl.requirements.sets import NamedSet, all_sets

_TODO = "`patchctl lock --requirements` makes it anew"


def check_requirements(dist: Distribution, report: Report) -> None:
    """Adds what is wrong with the sets that profiles name, and their locks."""
    try:
        sets = all_sets(dist)
        report.counts.update({"requirement locks": len(sets) * len(PLATFORMS)} if sets else {})
        for named in sets:
            for finding in _locks(dist, named):
                report.add([Finding(finding.rule, finding.message, below(dist.root, finding.file), finding.line)])
    except InvalidManifest as error:
        _add_unseen(report, manifest_findings(dist.root, error).findings)
    except BadManifest as error:
        _add_unseen(report, [from_error("requirements-lock", error, "manifests/requirements")])


def _add_unseen(report: Report, findings: Sequence[Finding]) -> None:
    """What the check of an extension, which reads the same files, has not said before."""
    seen = {(f.rule, f.message) for f in report.findings}
    report.add(f for f in findings if (f.rule, f.message) not in seen)


def _locks(dist: Distribution, named: NamedSet) -> Iterator[Finding]:
    try:
        declared = read_declared(named)
    except BadManifest as error:
        yield from_error("requirements-lock", error, str(named.folder / FILE))
        return
    for reason in stale(dist, named, declared):
        yield Finding("requirements-lock", f"not what the trees declare: {reason}: {_TODO}", str(named.folder / FILE))
    inputs = inputs_of(dist, named, declared)
    for platform in PLATFORMS:
        file = str(lock_path(named, platform))
        try:
            lock = read_lock(named, platform)
        except BadManifest as error:
            yield from_error("requirements-lock", error, file)
            continue
        if lock.input != inputs.digest(platform):
            what = "it no longer follows from what trees, profiles, recipes, scripts and set.yaml ask for"
            yield Finding("requirements-lock", f"{what}: {_TODO}", file)
