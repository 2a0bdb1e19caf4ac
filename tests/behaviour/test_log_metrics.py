"""scripts/plot_log.py against the verl that prints: its trainers' console, and every metric that it names.

verl's trainers run for real, on a tiny model; the source distribution of verl has no recipe/, so that DAPO's part is
skipped there.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import REPO, Upstream
from models import TinyModels

sys.path.insert(0, str(REPO / "scripts"))

from log.metrics import Metric, explanation, names, sections

pytestmark = pytest.mark.stack("verl", "<0.9")

PROBE = "tests/behaviour/verl/probe_log_metrics.py"
DAPO = "recipe/dapo/dapo_ray_trainer.py"
VERSIONS = "<0.9"
METRICS = [metric for section in sections() for metric in section.metrics if VERSIONS in metric.sources]
# f"timing/{name}" in DAPO's trainer, printed when it runs out of data: it is run, and not found by reading.
BY_RUNNING = "timing/save_checkpoint"


@pytest.fixture(scope="module")
def verl(upstream: Upstream, tiny_models: TinyModels) -> Any:
    tree = upstream.tree("verl")
    return upstream.run(PROBE, tiny_models.qwen3, tree, need=["verl"], timeout=300)


def place(name: str) -> str | None:
    """Where the table has the metric computed in this set."""
    metric = explanation(name)
    return metric.sources.get(VERSIONS) if metric else None


def summary(log: str, tmp_path: Path) -> dict[str, Any]:
    """What plot_log makes of a console, through a pipe that adds Ray's prefix and colours."""
    path = tmp_path / "console.log"
    path.write_text("".join(f"\x1b[36m(TaskRunner pid=7)\x1b[0m {line}\n" for line in log.splitlines()))
    command = [
        sys.executable,
        str(REPO / "scripts/plot_log.py"),
        str(path),
        "--csv",
        str(tmp_path / "all.csv"),
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    (run,) = json.loads(done.stdout)["runs"]
    return dict(run)


def ran(verl: Any, name: str) -> Any:
    """What the probe reports of a run; the test is skipped where the tree has no such trainer."""
    if name not in verl["runs"]:
        pytest.skip("this tree of verl has no recipe/ (a source distribution)")
    return verl["runs"][name]


@pytest.mark.parametrize("name", ["grpo", "dapo", "filtered", "small"])
def test_what_verl_prints_is_read_back_exactly(verl: Any, name: str, tmp_path: Path) -> None:
    of = ran(verl, name)
    run = summary(of["log"], tmp_path)
    trained = [step for step in of["steps"] if set(step) != {BY_RUNNING}]
    assert (run["first_step"], run["notes"]) == (1, [])
    for key in trained[0]:
        figures = run["metrics"][key]
        assert (figures["first"], figures["last"]) == (trained[0][key], trained[-1][key]), key
        assert figures["count"] == len(trained)
    assert set(run["metrics"]) == {key for step in of["steps"] for key in step}
    assert run["unknown_metrics"] == []


@pytest.mark.parametrize("name", ["grpo", "dapo", "filtered"])
def test_the_phases_of_a_real_step_fill_it(verl: Any, name: str, tmp_path: Path) -> None:
    run = summary(ran(verl, name)["log"], tmp_path)
    shares = {phase["name"]: phase["share"] for phase in run["phases"]}
    assert {"gen", "reward", "old_log_prob", "adv", "update_actor", "other"} <= set(shares)
    assert -1e-6 < shares["other"] < 0.2
    assert run["devices"] == 1


def test_dapo_that_runs_out_of_data_prints_its_last_checkpoint_apart(verl: Any) -> None:
    steps = ran(verl, "dapo")["steps"]
    assert set(steps[-1]) == {BY_RUNNING}
    assert [step["train/num_gen_batches"] for step in steps[:-1]] == [1, 1]


def test_of_several_generation_batches_gen_is_the_sum_and_generate_sequences_the_last(verl: Any) -> None:
    run = ran(verl, "filtered")
    (step,) = run["steps"]
    assert step["train/num_gen_batches"] == len(run["generated"]) == 2
    assert step["timing_s/generate_sequences"] == run["generated"][-1]
    assert step["timing_s/gen"] >= sum(run["generated"])


def test_every_metric_that_verl_names_is_explained(verl: Any) -> None:
    assert len(verl["names"]) > 100
    assert [name for name in verl["names"] if place(name) is None] == []


def test_every_metric_that_is_explained_is_one_of_verl(verl: Any) -> None:
    expected = {name for name in names() if place(name)} - {BY_RUNNING}
    if "dapo" not in verl["runs"]:
        expected -= {name for name in expected if str(place(name)).startswith(DAPO)}
    assert expected - set(verl["names"]) == set()


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_the_function_that_is_named_is_there(upstream: Upstream, metric: Metric) -> None:
    path, _, function = metric.sources[VERSIONS].rpartition(": ")
    file = upstream.tree("verl") / path
    if not file.is_file() and path.startswith("recipe/"):
        pytest.skip("this tree of verl has no recipe/ (a source distribution)")
    defined = {n.name for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    assert function in defined
