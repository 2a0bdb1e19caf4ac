"""Behaviour tests: patched upstream code running for real, in subprocesses, on a CPU."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import REPO, Upstream
from models import TinyModels, make_tiny_models
from trees import LazyTrees, Trees, built_trees, given_trees

BEHAVIOUR = Path(__file__).resolve().parent
HARNESS = [BEHAVIOUR / f"{name}.py" for name in ("conftest", "harness", "processes", "trees")]
MARKS = {
    "on": "shows that the need is met: fails on the unpatched tree and on the mutant, passes on the patched one",
    "off": "switched off or left alone: the same result on the unpatched and on the patched tree",
    "misuse": "a wrong setting is refused with a clear message",
}


def pytest_configure(config: pytest.Config) -> None:
    for name, meaning in MARKS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    # A mark misspelt is a test that `patchctl prove` would not run.
    config.option.strict_markers = True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Writes each test's marks into the JUnit report, where `patchctl prove` reads them."""
    for item in items:
        item.user_properties += [("mark", mark.name) for mark in item.iter_markers() if mark.name in MARKS]


@pytest.fixture(scope="session")
def trees(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trees:
    given = request.config.getoption("--trees")
    if given:
        return given_trees(Path(given), request.config.getoption("--stack"))
    return LazyTrees(lambda: built_trees(tmp_path_factory.mktemp("workspace")))


@pytest.fixture(scope="session")
def upstream(
    request: pytest.FixtureRequest, trees: Trees, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Upstream]:
    """Runs probes on the trees under test; see harness.Upstream. At the end --used has what it ran."""
    upstream = Upstream(trees, tmp_path_factory.mktemp("probes"))
    yield upstream
    if used := request.config.getoption("--used"):
        Path(used).write_text(json.dumps(sorted(upstream.used() | _imported())), encoding="utf-8")


def _imported() -> set[str]:
    """The modules beside the tests that tests imported, below the root; not the harness, which is the program that runs them."""
    files = {Path(m.__file__) for m in [*sys.modules.values()] if getattr(m, "__file__", None)}  # type: ignore[arg-type]
    below = {file.relative_to(REPO).as_posix() for file in files if file.is_relative_to(BEHAVIOUR)}
    return below - {file.relative_to(REPO).as_posix() for file in HARNESS}


@pytest.fixture(scope="module", autouse=True)
def _feature_under_test(request: pytest.FixtureRequest, upstream: Upstream, trees: Trees) -> None:
    """Tells `upstream` whose tests run: they are skipped where that feature's patch is not in the tree, and where the tree
    is of another stack than the one whose folder they lie in."""
    folders = request.path.parent.relative_to(BEHAVIOUR).parts
    name = folders[0].replace("_", "-") if folders else ""
    upstream.feature = (name, request.path.stem.removeprefix("test_")) if folders else None
    upstream.elsewhere = None
    if len(folders) > 1 and trees.stack(name).name != folders[1]:
        upstream.elsewhere = f"a test of {name} {folders[1]}, and the tree is of {trees.stack(name).name}"
    elif len(folders) == 1 and (request.path.parent / trees.stack(name).name / request.path.name).is_file():
        upstream.elsewhere = f"{name} {trees.stack(name).name} has its own {request.path.name}"


@pytest.fixture(scope="session")
def tiny_models(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> TinyModels:
    """Tiny Qwen3 models with random weights, made once a session."""
    return make_tiny_models(upstream, tmp_path_factory.mktemp("models"))
