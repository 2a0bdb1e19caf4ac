"""What the tests of requirements share: a copy of the real distribution, and changes of it."""

from __future__ import annotations

import shutil
from pathlib import Path

from pins import oldest

from patchctl.check.distribution import check_requirements
from patchctl.check.series import read_series
from patchctl.findings import Finding, Report
from patchctl.manifest.distribution import Distribution
from patchctl.training.recipes.check import check_packages

REPO = Path(__file__).resolve().parents[3]
SET = f"manifests/requirements/{oldest()}"
PROFILES = ("deepseek-r1", "qwen2.5-1.5b", "qwen3-235b", "qwen3-32b", "qwen3-8b")


def copy_of_ours(folder: Path) -> Path:
    """The parts of the real distribution from which its locks follow."""
    for name in ("manifests", "patches", "scripts"):
        shutil.copytree(REPO / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def edit(root: Path, file: str, old: str, new: str) -> None:
    """Replaces a text that has to be there."""
    text = (root / file).read_text()
    assert old in text, f"{file} has no {old!r}"
    (root / file).write_text(text.replace(old, new))


def findings(root: Path) -> list[Finding]:
    """What `verify` finds of the requirements, and of the packages that recipes and rewards name."""
    report, dist = Report(), Distribution.load(root)
    check_packages(dist, read_series(dist, Report()), report)
    check_requirements(dist, report)
    return report.findings
