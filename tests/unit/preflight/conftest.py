"""What the tests of preflight share: see preflight_cases."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from preflight_cases import Look, look_in


@pytest.fixture
def look(tmp_path: Path) -> Look:
    """Looks at a good node with some files replaced."""
    return look_in(tmp_path)
