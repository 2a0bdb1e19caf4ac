"""Fixtures of the tests of workspaces."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from on_disk import big, own, own_ws, shapes, small, ws

__all__ = ["big", "own", "own_ws", "shapes", "small", "ws"]
