"""Fixtures of the tests of workspaces."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = next(p for p in Path(__file__).parents if (p / "on_disk.py").is_file())
sys.path.insert(0, str(TESTS))

from on_disk import big, own, own_ws, small, ws

__all__ = ["big", "own", "own_ws", "small", "ws"]
