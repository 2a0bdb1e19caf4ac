"""scripts/run_proposed_tests.py: what it makes of outcomes on both trees."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(SCRIPTS), *sys.path])
    spec = importlib.util.spec_from_file_location("run_proposed_tests", SCRIPTS / "run_proposed_tests.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("base", "patched", "said"),
    [
        ({"t.py::a": "failed", "t.py::b": "passed"}, {"t.py::a": "passed", "t.py::b": "passed"}, []),
        ({"t.py": "error"}, {"t.py::a": "passed", "t.py::b": "skipped"}, []),
        ({"t.py::a": "passed"}, {"t.py::a": "passed"}, ["no test fails on the unpatched tree and passes on the patched one"]),
        ({"t.py::a": "failed"}, {"t.py::a": "skipped"}, ["no test fails on the unpatched tree and passes on the patched one"]),
        ({"t.py::a": "failed", "t.py::b": "failed"}, {"t.py::a": "passed", "t.py::b": "failed"}, ["t.py::b: failed on the patched tree"]),
        ({}, {"t.py::a": "passed"}, ["no test fails on the unpatched tree and passes on the patched one"]),
        ({"u.py": "error"}, {"t.py::a": "passed"}, ["no test fails on the unpatched tree and passes on the patched one"]),
        ({}, {}, ["no test fails on the unpatched tree and passes on the patched one"]),
    ],
    ids=["red and green", "not collected", "green twice", "skipped", "one red", "not run unpatched", "another file broken", "none ran"],
)  # fmt: skip
def test_wrong(script: ModuleType, base: dict[str, str], patched: dict[str, str], said: list[str]) -> None:
    assert script._wrong(base, patched) == said


def test_each_feature_that_proposes_tests_is_chosen(script: ModuleType) -> None:
    """Of the newest release; their files are what upstream's pytest is given."""
    release = next(iter(script.distribution().releases))
    chosen = {feature: suite for suite, features in script._chosen(release, []) for feature in features}
    folders = {file.parent.name for file in SCRIPTS.parent.glob("patches/*/*/*/pull_request")}
    assert chosen.keys() == folders
    for feature, suite in chosen.items():
        assert all((SCRIPTS.parent / file).is_file() for file in suite.added.values())
        assert any(one.endswith(".py") for one in suite.args), feature
