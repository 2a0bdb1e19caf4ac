"""No code, test or target names a release: what is true of one stands in its own files, what is true of a version names that version."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from pins import REPO, distribution

CODE = ("patchctl", "scripts", "tests", "benchmarks", "standins", ".ci", "Makefile", "Dockerfile", "Dockerfile.into")


def names() -> re.Pattern[str]:
    return re.compile("|".join(rf"(?<![\d.=]){re.escape(name)}(?![\d.])" for name in distribution().releases))


def test_no_file_but_a_releases_own_has_its_name() -> None:
    listed = subprocess.run(["git", "ls-files", "-z", *CODE], cwd=REPO, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a checkout of git")
    pattern = names()
    files = [Path(name) for name in listed.stdout.split("\0") if name and not pattern.search(name)]
    assert len(files) > 1000
    found = []
    for file in files:
        if (REPO / file).is_file() and not (REPO / file).is_symlink():
            text = (REPO / file).read_text(encoding="utf-8", errors="replace")
            found += [f"{file}: {match[0]}" for match in pattern.finditer(text)]
    assert found == []
