"""What every folder of tests knows, those of features in patches/ and all others in tests/: the options --slow, --share, --heavy,
--trees, --stack, --used and --dropped, the marks `slow` and `heavy`, and the fixtures of behaviour tests."""

from __future__ import annotations

import functools
import itertools
import signal
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import yaml

from patchctl.__main__ import compose

compose()  # before any module of tests: some load the distribution while they are imported
REPO = Path(__file__).resolve().parent
TESTS = REPO / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "behaviour")]
pytest_plugins = ["feature_tests"]
collect_ignore_glob = ["patches/*/*/*/pull_request/*"]  # tests for upstream's own suites, which run in its tree
HEAVY = (
    "takes more than it tells each time: left out by make test, by a share in make test-all, whole in make test-tool"
)
SLOW = "takes minutes, many processes or a matrix of cases: run with --slow (make test-slow, make test-mutants)"


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    _refuse_another_conftest(pluginmanager.get_plugin("pytestconfig").invocation_params.args)
    parser.addoption(
        "--trees",
        metavar="DIR",
        default=None,
        help="a folder with the upstream trees to test (DIR/verl, DIR/vllm, ...); without it patchctl builds them",
    )
    parser.addoption(
        "--stack",
        action="append",
        default=[],
        metavar="UPSTREAM/STACK",
        help="the stack that a tree given with --trees is of; a workspace says it itself, else it is the profile's",
    )
    parser.addoption("--used", metavar="FILE", help="write the tests and probes that the run read, as a JSON list")
    parser.addoption(
        "--dropped", metavar="UPSTREAM/FEATURE", help="run the tests of a feature that the stack does not carry"
    )
    parser.addoption("--slow", action="store_true", help="run the tests marked slow as well")
    parser.addoption(
        "--share", type=_share, default=(1, 1), metavar="I/N", help="of the test files every Nth, from the Ith on"
    )
    parser.addoption(
        "--heavy",
        type=_share,
        default=(1, 1),
        metavar="I/N",
        help="of the tests marked heavy every Nth, from the Ith on",
    )


def _share(text: str) -> tuple[int, int]:
    number, _, of = text.partition("/")
    if not 1 <= int(number) <= int(of):
        raise ValueError(text)
    return int(number), int(of)


def _refuse_another_conftest(words: Sequence[str]) -> None:
    """Before it has read this file pytest takes the DIR of `--trees DIR` for tests, and loads every conftest.py above it."""
    for option, folder in itertools.pairwise(words):
        place = Path(folder).resolve()
        for above in (place, *place.parents) if option == "--trees" else ():
            if above != REPO and (above / "conftest.py").is_file():
                raise pytest.UsageError(f"pytest would load {above}/conftest.py as well: write --trees={folder}")


def pytest_configure(config: pytest.Config) -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            # Started by `nohup` or in a script's background. A program that is started inherits what is ignored, not what is
            # handled: the tests go on as they were told to, and what they start is as in a terminal.
            signal.signal(number, lambda *_: None)
    config.addinivalue_line("markers", f"slow: {SLOW}")
    config.addinivalue_line("markers", f"heavy(why): {HEAVY}")


def pytest_itemcollected(item: pytest.Item) -> None:
    for why, tests in _heavy_features().items():
        if any(fnmatchcase(item.nodeid, pattern) for pattern in tests):
            item.add_marker(pytest.mark.heavy(why))


@functools.cache
def _heavy_features() -> dict[str, list[str]]:
    """What is heavy of tests on record, which keep their bytes: patterns of names by reason."""
    return dict(yaml.safe_load((TESTS / "behaviour" / "heavy.yaml").read_text(encoding="utf-8")))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    number, of = config.getoption("--share")
    files = set(sorted({item.path for item in items})[number - 1 :: of])
    number, of = config.getoption("--heavy")
    heavy = [item for item in items if item.get_closest_marker("heavy")]
    out = {item for item in items if item.path not in files} | {*heavy} - {*heavy[number - 1 :: of]}
    config.hook.pytest_deselected(items=[item for item in items if item in out])
    items[:] = [item for item in items if item not in out]
    long = {item.path for item in items if item.get_closest_marker("heavy")}
    # First what takes longest, so that no worker waits for it at the end.
    items.sort(key=lambda item: item.path not in long)
    for item in items:
        if item.get_closest_marker("slow") and not config.getoption("--slow"):
            item.add_marker(pytest.mark.skip(reason="slow: make test-slow runs it"))
