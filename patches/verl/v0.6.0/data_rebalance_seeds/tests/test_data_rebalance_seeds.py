"""data_rebalance_seeds: replicas that have samples of the same prompt draw them from random numbers of their own."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness import Upstream
from models import TinyModels

NPU = {
    "need": ["verl", "vllm-ascend", "vllm", "megatron-lm"],
    "standins": ["torch_npu", "npu_engine", "vllm-cpu-dist-info", "vllm-ascend-dist-info"],
    "env": {"VLLM_ASCEND_ENABLE_NZ": "0"},
}
SAMPLED = {"temperature": 1, "free_cache_engine": False}
SPREAD = SAMPLED | {"data_rebalance": True}
WORKERS = ("fsdp", "megatron")


def worlds(upstream: Upstream, model: object, *cases: dict[str, Any]) -> Any:
    return upstream.run("probe_rebalance_seeds.py", model, json.dumps(cases), timeout=300, **NPU)


@pytest.mark.on
def test_replicas_draw_other_samples_of_a_prompt(upstream: Upstream, tiny_models: TinyModels) -> None:
    one_replica = {"procs": 2, "worker": "fsdp", "settings": SPREAD | {"tensor_model_parallel_size": 2}}
    replicas = [{"procs": 2, "worker": worker, "settings": SPREAD} for worker in WORKERS]
    *found, ranks = worlds(upstream, tiny_models.qwen3, *replicas, one_replica)
    for first, second in found:
        assert [first["seed"], second["seed"]] == [1000, 1001]
        assert all(one != other for one, other in zip(first["tokens"], second["tokens"], strict=True))
    # The ranks of one replica sample alike, each by itself.
    assert ranks[0] == ranks[1]
    assert ranks[0]["seed"] == 1000


@pytest.mark.off
def test_upstreams_replicas_begin_alike(upstream: Upstream, tiny_models: TinyModels) -> None:
    """They have different prompts there, so that nobody sees it. The unpatched rollout cannot be imported beside this vllm."""
    cases = [{"procs": 2, "worker": worker, "settings": SAMPLED, "only_seeds": True} for worker in WORKERS]
    found = worlds(upstream, tiny_models.qwen3, *cases)
    assert found == [[{"seed": 0}, {"seed": 0}]] * 2
