"""te_state_dict with mbridge: verl's Megatron workers take Hugging Face weights of Qwen3 and give them back.

Real: verl's worker with use_mbridge, mbridge, Megatron's model and optimizer with MindSpeed's layers, collectives (gloo).
Stood for are the device and the operators of an NPU (standins/megatron_cpu, standins/npu_attention).
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from harness import Upstream, torch_python

MODELS = ["qwen3", "qwen3_moe"]
WHOLE = {"missing": [], "different": [], "twice": []}
Jobs = dict[str, dict[str, Any]]


class Bridged:
    """Runs jobs of probe_mbridge.py, by name; results of several processes come as lists by rank."""

    def __init__(self, upstream: Upstream, models: dict[str, str]) -> None:
        self._upstream = upstream
        self._models = models

    def run(self, jobs: Jobs, procs: int = 1) -> dict[str, Any]:
        listed = [job | {"model": self._models[job["model"]]} for job in jobs.values()]
        found = self._upstream.run(
            "probe_mbridge.py",
            json.dumps(listed),
            need=["verl", "megatron-lm", "mindspeed"],
            standins=["torch_npu", "megatron_cpu", "npu_attention"],
            procs=procs,
            timeout=300,
        )
        if procs == 1:
            return dict(zip(jobs, found, strict=True))
        return {name: [rank[index] for rank in found] for index, name in enumerate(jobs)}


@pytest.fixture(scope="module")
def bridged(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Bridged:
    for name in ("verl", "megatron-lm", "mindspeed"):
        upstream.tree(name)
    python = torch_python()
    asked = [str(python), "-c", "import importlib.metadata as m; print(m.version('mbridge'))"]
    if subprocess.run(asked, capture_output=True, check=False).returncode != 0:
        pytest.skip(f"{python} has no mbridge: pip install --no-deps -r tests/behaviour/requirements-no-deps.txt")
    models = upstream.run(
        "tests/behaviour/verl/tiny_moe_models.py", tmp_path_factory.mktemp("models"), *MODELS, timeout=180
    )
    return Bridged(upstream, models)


@pytest.fixture(scope="module")
def found(bridged: Bridged) -> dict[str, Any]:
    return bridged.run({name: {"model": name} for name in MODELS} | {"in parts": {"model": "qwen3", "in_parts": True}})


@pytest.fixture(scope="module")
def by_rank(bridged: Bridged) -> dict[str, Any]:
    jobs = {
        "tp": {"model": "qwen3", "parallel": {"tp": 2}},
        "pp": {"model": "qwen3", "parallel": {"pp": 2}},
        "ep": {"model": "qwen3_moe", "parallel": {"ep": 2}, "in_parts": True},
    }
    return bridged.run(jobs, procs=2)


@pytest.fixture(scope="module")
def made(bridged: Bridged) -> dict[str, Any]:
    """What does not come as far as the export, so that it is the same without the patch."""
    jobs: Jobs = {name: {"model": name, "only_made": True} for name in MODELS}
    return bridged.run(jobs | {"overlap": {"model": "qwen3_moe", "overlap": True}})


@pytest.mark.on
@pytest.mark.parametrize("model", MODELS)
def test_log_probabilities_are_those_of_hugging_face(found: dict[str, Any], model: str) -> None:
    difference, values = found[model]["log_probs"]

    # bf16 against float32; with norms left at one the difference is as large as the values' own range.
    assert difference < 0.03 * values
    assert values > 10


@pytest.mark.on
@pytest.mark.parametrize("case", [*MODELS, "in parts"])
@pytest.mark.parametrize("what", ["exported", "saved", "loaded"])
def test_the_rollout_and_checkpoints_get_the_tensors_bit_for_bit(found: dict[str, Any], case: str, what: str) -> None:
    assert found[case][what] | WHOLE == found[case][what]
    assert found[case][what]["names"] > 20


@pytest.mark.on
@pytest.mark.slow
@pytest.mark.parametrize("case", ["tp", "pp", "ep"])
def test_every_rank_gives_out_all_of_them(by_rank: dict[str, Any], case: str) -> None:
    for rank in by_rank[case]:
        for what in ("exported", "saved", "loaded"):
            assert rank[what] | WHOLE == rank[what]
        difference, values = rank["log_probs"]
        assert difference < 0.03 * values


@pytest.mark.off
@pytest.mark.parametrize("model", MODELS)
def test_megatron_is_configured_as_without_the_bridge(made: dict[str, Any], model: str) -> None:
    assert made[model] == {"refused": None, "config": []}


@pytest.mark.off
def test_grouped_experts_of_the_overlap_are_refused_by_name(made: dict[str, Any]) -> None:
    assert made["overlap"]["refused"] == "Unsupported parameter name: decoder.layers.0.mlp.experts.weight1"
