"""dummy_step_slots: the dummy step of an idle data-parallel rank leaves the KV cache as it is, with full graphs too."""

from __future__ import annotations

from typing import Any

import pytest
from harness import Upstream
from models import TinyModels

PROBE = "probe_dummy_step_slots.py"
NPU: dict[str, Any] = {
    "need": ["vllm-ascend", "vllm"],
    "standins": ["torch_npu", "npu_engine", "vllm-cpu-dist-info", "vllm-ascend-dist-info"],
    "env": {"VLLM_ASCEND_ENABLE_NZ": "0"},
    "timeout": 400,
}
BLOCK = 128


def run(upstream: Upstream, models: TinyModels, mode: str) -> Any:
    return upstream.run(PROBE, models.qwen3, mode, **NPU)


@pytest.mark.on
@pytest.mark.parametrize("mode", ["FULL_DECODE_ONLY", "FULL"])
def test_a_dummy_step_writes_nothing(upstream: Upstream, tiny_models: TinyModels, mode: str) -> None:
    seen = run(upstream, tiny_models, mode)
    busy, idle = seen["busy"], seen["idle"]
    assert idle["replayed"] == 1
    assert {name: places for name, places in idle["written"].items() if places} == {}
    assert idle["cached"] == busy["cached"] == BLOCK
    assert idle["first"] == busy["first"]
    assert idle["tokens"] == busy["tokens"]
    assert idle["logprobs"] == pytest.approx(busy["logprobs"], abs=1e-6)
