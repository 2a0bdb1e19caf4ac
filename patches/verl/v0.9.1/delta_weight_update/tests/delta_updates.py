"""What the tests of updates between a trainer and an engine share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness import Upstream

STANDINS = [
    "vllm-cpu-dist-info",
    "vllm-ascend-dist-info",
    "torch_npu",
    "npu_engine",
    "npu_engine_0_23",
    "npu_experts_0_23",
    "npu_latent_0_23",
    "npu_training",
    "npu_training_0_9",
    "torchvision",
]
STEPS = 20
WHOLE = 1.0


def updated(upstream: Upstream, standin: str, model: Path, trainers: int, engines: int, **megatron: int) -> Any:
    """What the probe found, of `trainers` ranks and an engine of `engines`; with `megatron`, the sizes of verl's Megatron engine, that trains."""
    return upstream.run(
        "probe_delta_weight_update.py",
        standin,
        model,
        trainers,
        STEPS,
        *([json.dumps(megatron)] if megatron else []),
        need=["verl", "vllm", "vllm-ascend", *(["megatron-lm", "mindspeed"] if megatron else [])],
        standins=[*STANDINS, *(["megatron_cpu", "npu_attention"] if megatron else [])],
        env={"VLLM_ASCEND_ENABLE_NZ": "0"},
        procs=trainers + engines,
        timeout=400,
    )[0]


def holds(found: Any) -> None:
    """Whole at first, then parts; whole again where something was not as it should; and always what a whole update brings."""
    assert found["first"][0] == WHOLE
    assert len(found["shares"]) == STEPS
    assert all(0 < share < 1 / 2 for share in found["shares"])
    assert min(found["of"]) > 0
    assert found["nothing"] == [0, 0]
    assert found["spoil"] == WHOLE
    assert found["spoil_a_flush"] == WHOLE
    assert 0 < found["goes on"] < 1 / 2
    assert found["joined"] == WHOLE
    assert 0 < found["goes on then"] < 1 / 2
    assert list(found["equal"].values()) == [[WHOLE, True]] * 6
