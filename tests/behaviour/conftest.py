"""Behaviour tests: patched upstream code running for real, in subprocesses, on a CPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import Upstream
from models import TinyModels, make_tiny_models
from trees import LazyTrees, Trees, built_trees, given_trees

MARKS = {
    "on": "shows that the need is met: fails on the unpatched tree and on the mutant, passes on the patched one",
    "off": "switched off or left alone: the same result on the unpatched and on the patched tree",
    "misuse": "a wrong setting is refused with a clear message",
}


def pytest_configure(config: pytest.Config) -> None:
    for name, meaning in MARKS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    # A mark misspelt is a test that prove_patches.py would not run.
    config.option.strict_markers = True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Writes each test's marks into the JUnit report, where prove_patches.py reads them."""
    for item in items:
        item.user_properties += [("mark", mark.name) for mark in item.iter_markers() if mark.name in MARKS]


@pytest.fixture(scope="session")
def trees(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trees:
    given = request.config.getoption("--trees")
    if given:
        return given_trees(Path(given))
    return LazyTrees(lambda: built_trees(tmp_path_factory.mktemp("workspace")))


@pytest.fixture(scope="session")
def upstream(trees: Trees, tmp_path_factory: pytest.TempPathFactory) -> Upstream:
    """Runs probes on the trees under test; see harness.Upstream."""
    return Upstream(trees, tmp_path_factory.mktemp("probes"))


@pytest.fixture(scope="module", autouse=True)
def _feature_under_test(request: pytest.FixtureRequest, upstream: Upstream) -> None:
    """Tells `upstream` whose tests run: they are skipped where that feature's patch is not in the tree."""
    file = request.path
    belongs = file.parent != Path(__file__).resolve().parent
    upstream.feature = (file.parent.name.replace("_", "-"), file.stem.removeprefix("test_")) if belongs else None


@pytest.fixture(scope="session")
def tiny_models(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> TinyModels:
    """Tiny Qwen3 models with random weights, made once a session."""
    return make_tiny_models(upstream, tmp_path_factory.mktemp("models"))
