"""delta_weight_update from verl's Megatron engine, whose bridge puts together what is sent, with MindSpeed's layers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from delta_updates import holds, updated
from harness import Upstream
from models import TinyModels


@pytest.mark.on
def test_two_stages_of_a_model_whose_output_is_its_embedding(
    upstream: Upstream, tiny_models: TinyModels, tmp_path: Path
) -> None:
    """Both stages export it."""
    model = shutil.copytree(tiny_models.qwen3, tmp_path / "tied")
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    (model / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}), encoding="utf-8")
    holds(updated(upstream, "npu_engine_0_23", model, 2, 1, pipeline_model_parallel_size=2))


@pytest.mark.on
def test_tensor_parallelism(upstream: Upstream, tiny_models: TinyModels) -> None:
    holds(updated(upstream, "npu_engine_0_23", tiny_models.qwen3, 2, 2, tensor_model_parallel_size=2))


@pytest.mark.on
def test_experts(upstream: Upstream, tiny_models: TinyModels, tmp_path: Path) -> None:
    """A rank has half of them, on either side."""
    model = "patches/verl/shared/moe_update_weights/tests/probe_moe_update_model.py"
    upstream.run(model, tiny_models.qwen3_moe, tmp_path / "oblong")
    holds(updated(upstream, "npu_experts_0_23", tmp_path / "oblong", 2, 2, expert_model_parallel_size=2))


@pytest.mark.on
def test_latent_attention(upstream: Upstream, tiny_models: TinyModels, tmp_path: Path) -> None:
    """A DeepSeek-V3, whose projections are derived from what was written, and whose experts' biases are float32 on either side."""
    upstream.run("patches/verl/shared/mla_update_weights/tests/probe_mla_model.py", tiny_models.qwen3, tmp_path / "mla")
    found = updated(upstream, "npu_latent_0_23", tmp_path / "mla", 2, 1, tensor_model_parallel_size=2)
    holds(found)
    assert found["float32"] == [2, 0]  # a layer's each
