"""Lets the fuzz tests use what the other tests build."""

from __future__ import annotations

import sys
from pathlib import Path

_TESTS = Path(__file__).parents[1]
sys.path.extend(str(_TESTS / p) for p in ("fuzz", "", "unit/patch", "unit/source", "hostile/patch"))
