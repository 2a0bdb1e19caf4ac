"""The mark `family`: which row of docs/hostile-input.md a case belongs to. test_families.py counts them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "family(name): the family of hostile inputs, a row of docs/hostile-input.md")
