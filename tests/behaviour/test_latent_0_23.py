"""The operators of latent attention in vllm-ascend 0.23 against plain PyTorch. An engine is held against Hugging Face by
test_mla_update_weights of test_needs_met_2026_11.py. `make test-behaviour` runs both."""

from __future__ import annotations

from typing import Any

import pytest
from harness import Upstream

# float32 sums of some ten products, in another order.
TOLERANCE = 1e-5
STANDINS = ["torch_npu", "npu_engine", "npu_engine_0_23", "npu_experts_0_23", "npu_latent_0_23"]


@pytest.fixture(scope="module")
def operators(upstream: Upstream) -> Any:
    return upstream.run("probe_latent_ops_0_23.py", standins=STANDINS)


def test_operators_equal_plain_pytorch(operators: Any) -> None:
    assert sorted(operators["differences"]) == ["causal", "decode", "decode in a graph", "merged"]
    assert max(operators["differences"].values()) <= TOLERANCE


def test_what_does_not_fit_is_refused(operators: Any) -> None:
    refused = operators["refused"]
    assert refused.pop("queries that no sequence has") == refused.pop("keys that no sequence has") == "ValueError"
    assert list(refused.values()) == ["NotImplementedError"] * 2
