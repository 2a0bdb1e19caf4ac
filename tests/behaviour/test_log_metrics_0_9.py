"""The table of metrics against verl v0.9.0: every name that its v1 trainer prints, and where it is computed."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from typing import Any

import pytest
from harness import REPO, Upstream

from patchctl.training.recipes.conditions import version_of, within

sys.path.insert(0, str(REPO / "scripts"))

from log.metrics import Metric, explanation, names, sections

PROBE = "tests/behaviour/verl/probe_log_metrics_0_9.py"
METRICS = [metric for section in sections() for metric in section.metrics if {*metric.sources} - {"<0.9"}]


def place_in(upstream: Upstream, metric: Metric | None) -> str | None:
    """Where the table has the metric computed in this version, with the patches of these trees."""
    if metric is None or (metric.patch and upstream.lacks("verl", metric.patch)):
        return None
    stack = upstream.stack("verl")
    return next((place for versions, place in metric.sources.items() if within(version_of(stack), versions)), None)


@pytest.fixture(scope="module")
def place(upstream: Upstream) -> Callable[[str], str | None]:
    """The same by name."""
    return lambda name: place_in(upstream, explanation(name))


@pytest.fixture(scope="module")
def verl(upstream: Upstream) -> Any:
    upstream.skip_unless("verl", ">=0.9")
    return upstream.run(PROBE, upstream.tree("verl"), need=["verl"], standins=["torchvision"], timeout=300)


def test_every_metric_that_verl_names_is_explained(verl: Any, place: Callable[[str], str | None]) -> None:
    assert len(verl["names"]) > 100
    assert [name for name in verl["names"] if place(name) is None] == []


def test_every_metric_that_is_explained_is_one_of_verl(verl: Any, place: Callable[[str], str | None]) -> None:
    assert {name for name in names() if place(name)} - set(verl["names"]) == set()


def test_it_is_written_in_the_file_that_is_named(verl: Any, place: Callable[[str], str | None]) -> None:
    assert len(verl["written"]) > 30
    for name, files in verl["written"].items():
        assert str(place(name)).split(": ")[0] in files, name


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_the_function_that_is_named_is_there(upstream: Upstream, metric: Metric) -> None:
    upstream.skip_unless("verl", ">=0.9")
    if (found := place_in(upstream, metric)) is None:
        pytest.skip("of other versions")
    file, _, function = found.rpartition(": ")
    code = ast.parse((upstream.tree("verl") / file).read_text())
    assert function in {
        node.name for node in ast.walk(code) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    }
