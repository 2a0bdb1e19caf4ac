"""Behaviour tests: patched upstream code running for real, in subprocesses, on a CPU. Those of a feature lie in its folder,
patches/UPSTREAM/STACK/FEATURE/tests; what serves several, and tests of no feature, beside this plugin of pytest."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from harness import BEHAVIOUR, PATCHES, REPO, SHARED, Upstream
from models import TinyModels, make_tiny_models
from packaging.specifiers import SpecifierSet
from pins import distribution, index_version, stack_of
from trees import LazyTrees, Trees, built_trees, features_of, given_trees

from patchctl.catalog.evidence import tests_of

HARNESS = [BEHAVIOUR / f"{name}.py" for name in ("feature_tests", "harness", "processes", "trees")]
MARKS = {
    "on": "shows that the need is met: fails on the unpatched tree and on the mutant, passes on the patched one",
    "off": "switched off or left alone: the same result on the unpatched and on the patched tree",
    "misuse": "a wrong setting is refused with a clear message",
}


def pytest_configure(config: pytest.Config) -> None:
    for name, meaning in MARKS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    config.addinivalue_line("markers", "stack(upstream, versions): what is true of these versions of an upstream alone")
    # A mark misspelt is a test that `patchctl prove` would not run.
    config.option.strict_markers = True
    sys.path += map(str, SHARED)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A test imports what lies beside it: in the folders of two stacks' features there are files of one name."""
    if isinstance(collector, pytest.Module) and collector.path.is_relative_to(PATCHES):
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if file and Path(file).is_relative_to(PATCHES) and Path(file).parent != collector.path.parent:
                del sys.modules[name]
    return (yield)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Trees are of one stack an upstream: of a folder of tests, those of other stacks are no part of the run. A file that is named is."""
    if not collection_path.name.startswith("test_") or not collection_path.is_relative_to(PATCHES):
        return None
    if not (given := config.getoption("--trees")) or _is_named(collection_path, config):
        return None
    upstream, written_for, feature, *_ = collection_path.relative_to(PATCHES).parts
    stack = _given(Path(given), tuple(config.getoption("--stack"))).stack(upstream)
    if written_for == stack.name:
        return None
    mine = feature in features_of(stack) and collection_path.relative_to(REPO).as_posix() in tests_of(
        distribution(), stack, feature
    )
    return None if mine or config.getoption("--dropped") == f"{upstream}/{feature}" else True


_given = functools.cache(given_trees)


def _is_named(file: Path, config: pytest.Config) -> bool:
    named = (Path(config.invocation_params.dir, argument.partition("::")[0]) for argument in config.args)
    return file.resolve() in {path.resolve() for path in named}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Writes each test's marks into the JUnit report, where `patchctl prove` reads them. Of other versions it has no tests to see."""
    for item in items:
        item.user_properties += [("mark", mark.name) for mark in item.iter_markers() if mark.name in MARKS]
    if config.getoption("--used"):  # a run of prove, which takes a skipped test for none that was run
        others = [item for item in items if _of_other_versions(item)]
        items[:] = [item for item in items if item not in others]
        config.hook.pytest_deselected(items=others)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what the mark `stack` says is of other versions, before any fixture of it runs."""
    if reason := _of_other_versions(item):
        pytest.skip(reason)


def _of_other_versions(item: pytest.Item) -> str | None:
    for mark in item.iter_markers("stack"):
        upstream, versions = mark.args
        given = item.config.getoption("--trees")
        named = _given(Path(given), tuple(item.config.getoption("--stack"))).stack(upstream) if given else None
        stack = named or stack_of(upstream, release=os.environ.get("PATCHCTL_RELEASE"))
        if not SpecifierSet(versions, prereleases=True).contains(index_version(stack)):
            return f"of {upstream} {versions}, and the tree is of {stack.name}"
    return None


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
    tops = (BEHAVIOUR, PATCHES)
    below = {file.relative_to(REPO).as_posix() for file in files if any(map(file.is_relative_to, tops))}
    return below - {file.relative_to(REPO).as_posix() for file in HARNESS}


@pytest.fixture(scope="module", autouse=True)
def _feature_under_test(request: pytest.FixtureRequest) -> None:
    """Tells `upstream` whose tests run: they are skipped where that feature's patch is not in the tree, and where the tree
    is of a stack that has its tests elsewhere."""
    path = request.path
    if not any(map(path.is_relative_to, (BEHAVIOUR, PATCHES))):
        return
    upstream: Upstream = request.getfixturevalue("upstream")
    upstream.folder, upstream.feature, upstream.elsewhere = path.parent, None, None
    if path.is_relative_to(PATCHES):
        name, stack, feature, *_ = path.relative_to(PATCHES).parts
        mine = request.getfixturevalue("trees").stack(name)
        if request.config.getoption("--dropped") != f"{name}/{feature}":
            upstream.feature = (name, feature)
        if path.relative_to(REPO).as_posix() not in tests_of(distribution(), mine, feature):
            upstream.elsewhere = (
                f"a test of {name} {stack}, and not of {mine.name}, which the tree is of; --trees=DIR names other trees"
            )


@pytest.fixture(scope="session")
def tiny_models(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> TinyModels:
    """Tiny Qwen3 models with random weights, made once a session."""
    return make_tiny_models(upstream, tmp_path_factory.mktemp("models"))
