"""The stand-ins' mixture-of-experts mathematics: each operator against plain PyTorch, and whole engines against HF."""

from __future__ import annotations

from typing import Any

import pytest
from harness import Upstream
from models import TinyModels

NPU: dict[str, Any] = {
    "need": ["vllm-ascend", "vllm"],
    "standins": ["torch_npu", "npu_engine", "vllm-cpu-dist-info", "vllm-ascend-dist-info"],
    "env": {"VLLM_ASCEND_ENABLE_NZ": "0"},
}
ENGINE = "tests/behaviour/probe_moe_engine.py"
# float32 sums of six to eight products, in another order.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def operators(upstream: Upstream) -> Any:
    return upstream.run("tests/behaviour/probe_moe_ops.py", standins=["torch_npu"])


@pytest.mark.parametrize("kind", ["moe", "gating", "permutation", "quantised"])
def test_operators_equal_plain_pytorch(operators: Any, kind: str) -> None:
    assert len(operators[kind]) >= 2
    assert {name: size for name, size in operators[kind].items() if not size <= TOLERANCE} == {}


def test_integers_are_counted(operators: Any) -> None:
    assert operators["counted"] == [1, 1, 2, 0]


def test_a_row_of_weight_zero_is_left_out(operators: Any) -> None:
    assert operators["padding"] == [[2.0, 4.0]]


def test_what_is_not_implemented_is_refused(operators: Any) -> None:
    refused = operators["refused"]
    assert refused.pop("weight in the loader's layout") == "ValueError"
    assert set(refused.values()) == {"NotImplementedError"}


@pytest.mark.stack("vllm-ascend", "<0.23")
def test_engine_with_ascend_experts_equals_hf(upstream: Upstream, tiny_models: TinyModels) -> None:
    out = upstream.run(ENGINE, tiny_models.qwen3_moe, **NPU)
    assert out["tokens"] == out["hf"]
    assert (out["layer"], out["w13"][0]) == ("AscendFusedMoE", 4)


@pytest.mark.stack("vllm-ascend", "<0.23")
def test_two_engines_that_share_the_experts_equal_hf(upstream: Upstream, tiny_models: TinyModels) -> None:
    ranks = upstream.run(ENGINE, tiny_models.qwen3_moe, procs=2, timeout=240, **NPU)
    assert [out["tokens"] for out in ranks] == [out["hf"] for out in ranks]
    assert [out["w13"][0] for out in ranks] == [2, 2]
    assert [len(out["tokens"]) for out in ranks] == [3, 1]
