"""Fixtures for the tests of sources."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from source_builders import IndexServer, Repo, index_server, make_repo

from patchctl.git import fetch as git_fetch
from patchctl.source import places
from patchctl.source.types import SourceOptions


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "network: needs the package index that pip is configured for; skipped without it"
    )


@pytest.fixture(autouse=True)
def a_new_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process remembers is forgotten, and the home is an empty folder."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setattr(places, "_unreachable", {})
    git_fetch.user_settings.cache_clear()


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return make_repo(tmp_path / "a repo ü" / "demo")


@pytest.fixture
def index() -> Iterator[IndexServer]:
    with index_server() as server:
        yield server


@pytest.fixture
def options(tmp_path: Path) -> SourceOptions:
    return SourceOptions(cache=tmp_path / "cache")
