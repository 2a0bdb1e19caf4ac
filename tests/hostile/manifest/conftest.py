"""A small good distribution, copied for each test, and a way to break it at one place."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(shutil.copytree(HERE / "distribution", tmp_path / "distribution"))


@pytest.fixture
def edit(root: Path) -> Callable[[str, str, str], None]:
    """edit(file, old, new): replaces a text that is in the file exactly once."""

    def change(file: str, old: str, new: str) -> None:
        path = root / file
        text = path.read_text()
        assert text.count(old) == 1, f"{old!r} is {text.count(old)} times in {file}"
        path.write_text(text.replace(old, new))

    return change
