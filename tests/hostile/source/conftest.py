"""The hostile inputs of sources use the builders and fixtures of tests/unit/source."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_UNIT = Path(__file__).parents[2] / "unit" / "source"
sys.path.insert(0, str(_UNIT))
_spec = importlib.util.spec_from_file_location("source_fixtures", _UNIT / "conftest.py")
assert _spec is not None and _spec.loader is not None
_fixtures = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_fixtures)

pytest_configure = _fixtures.pytest_configure
a_new_run = _fixtures.a_new_run
repo = _fixtures.repo
index = _fixtures.index
options = _fixtures.options
