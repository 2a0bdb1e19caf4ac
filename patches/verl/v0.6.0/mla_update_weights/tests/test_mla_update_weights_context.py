"""Context parallel latent attention is refused, although its class comes from the one that can be updated."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import Upstream
from models import TinyModels

STANDINS = ["torch_npu", "npu_engine", "vllm-cpu-dist-info", "vllm-ascend-dist-info"]


@pytest.mark.misuse
def test_context_parallel_attention_is_refused(upstream: Upstream, tiny_models: TinyModels, tmp_path: Path) -> None:
    model = tmp_path / "deepseek_v3"
    assert upstream.run("probe_mla_model.py", tiny_models.qwen3, model) > 0
    where = {"need": ["verl", "vllm-ascend", "vllm"], "standins": STANDINS, "env": {"VLLM_ASCEND_ENABLE_NZ": "0"}}
    found = upstream.run("probe_mla_context.py", model, timeout=300, **where)
    assert found["inherits"] is True
    assert "layers.2.self_attn.attn of DeepseekV3ForCausalLM cannot be updated: AscendMlaCPImpl is not" in found["said"]
