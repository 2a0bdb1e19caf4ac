"""Faults of manifests as findings, with paths as the distribution has them."""

from __future__ import annotations

from pathlib import Path

from patchctl.findings.report import Finding, Report
from patchctl.manifest.problems import InvalidManifest


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
