"""delta_weight_update, of models whose engine keeps weights otherwise than a checkpoint does."""

from __future__ import annotations

from pathlib import Path

import pytest
from delta_updates import holds, updated
from harness import Upstream
from models import TinyModels


@pytest.mark.on
def test_experts(upstream: Upstream, tiny_models: TinyModels, tmp_path: Path) -> None:
    """Packed and cut in two trainers, one tensor each in the engine's loader, fused, turned and shared out in the layers of two ranks."""
    model = "patches/verl/shared/moe_update_weights/tests/probe_moe_update_model.py"
    upstream.run(model, tiny_models.qwen3_moe, tmp_path / "oblong")
    holds(updated(upstream, "npu_experts_0_23", tmp_path / "oblong", 2, 2))


@pytest.mark.on
def test_latent_attention(upstream: Upstream, tiny_models: TinyModels, tmp_path: Path) -> None:
    """A DeepSeek-V3, whose projections are derived from what was written."""
    upstream.run("patches/verl/shared/mla_update_weights/tests/probe_mla_model.py", tiny_models.qwen3, tmp_path / "mla")
    holds(updated(upstream, "npu_latent_0_23", tmp_path / "mla", 1, 1))
