"""The small good distribution of the hostile tests, copied for each test."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

DISTRIBUTION = Path(__file__).parents[2] / "hostile" / "manifest" / "distribution"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DISTRIBUTION, tmp_path / "distribution"))
