"""dynamic_cp_on_npu: what ends dynamic_context_parallel in its first micro-batch is refused before there are groups or a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from harness import Upstream
from models import TinyModels

PROBE = "tests/behaviour/verl/probe_dynamic_cp.py"
DYNAMIC = {"context_parallel_size": 2, "dynamic_context_parallel": True, "max_seqlen_per_dp_cp_rank": 16}


def engine(upstream: Upstream, model: Path, folder: Path, settings: dict[str, Any]) -> Any:
    return upstream.run(
        PROBE,
        model,
        json.dumps(settings),
        json.dumps([5, 3]),
        folder / "whole",
        need=["verl", "megatron-lm", "mindspeed"],
        standins=[
            "torch_npu", "megatron_cpu", "npu_attention", "npu_training", "npu_training_0_9", "patchctl_standins", "torchvision",
        ],
        env={"PATCHCTL_STANDINS": "0"},
        timeout=300,
    )  # fmt: skip


@pytest.mark.on
def test_a_context_parallel_size_of_one_is_refused(upstream: Upstream, tiny_models: TinyModels, tmp_path: Path) -> None:
    made = engine(upstream, tiny_models.qwen3, tmp_path, DYNAMIC | {"context_parallel_size": 1})
    assert made["error"].startswith("ValueError: dynamic_context_parallel needs context_parallel_size of 2 or more")
    assert made["groups"] is False


@pytest.mark.on
def test_latent_attention_is_refused(upstream: Upstream, tiny_models: TinyModels, tmp_path: Path) -> None:
    model = "patches/verl/shared/mla_update_weights/tests/probe_mla_model.py"
    upstream.run(model, tiny_models.qwen3, tmp_path / "deepseek")
    made = engine(upstream, tmp_path / "deepseek", tmp_path, DYNAMIC)
    assert made["error"].startswith("NotImplementedError: dynamic_context_parallel does not go with latent attention")
    assert made["groups"] is False


@pytest.mark.off
def test_an_engine_without_the_setting_takes_a_step(
    upstream: Upstream, tiny_models: TinyModels, tmp_path: Path
) -> None:
    assert engine(upstream, tiny_models.qwen3, tmp_path, {}) == {"error": None, "engine": "MindspeedEngineWithLMHead"}
    assert (tmp_path / "whole").is_file()


@pytest.mark.misuse
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_seqlen_per_dp_cp_rank": None}, "max_seqlen_per_dp_cp_rank must be a positive integer"),
        ({"use_remove_padding": False}, "dynamic_context_parallel requires use_remove_padding=True"),
        ({"pad_to_length": True}, "dynamic_context_parallel does not support pad_to_length"),
        (
            {"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2},
            "Dynamic CP does not support virtual pipeline parallelism",
        ),
    ],
    ids=["cap", "padding", "length", "virtual stages"],
)
def test_upstreams_own_refusals(
    upstream: Upstream, tiny_models: TinyModels, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    made = engine(upstream, tiny_models.qwen3, tmp_path, DYNAMIC | settings)
    assert message in made["error"]
    assert made["groups"] is False
