"""te_state_dict: the state_dict of a model with MindSpeed's fused layers has every parameter, each once.

Real: MindSpeed's layers in verl's Megatron models, and verl's checkpoints; see standins/megatron_cpu/mindspeed_on_cpu.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from harness import Upstream

MODELS = ["qwen3", "qwen3_moe", "deepseek_v3"]


@pytest.fixture(scope="module")
def found(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    for name in ("verl", "megatron-lm", "mindspeed"):
        upstream.tree(name)
    folders = upstream.run(
        "tests/behaviour/verl/tiny_moe_models.py", tmp_path_factory.mktemp("models"), *MODELS, timeout=180
    )
    results = upstream.run(
        "probe_te_state_dict.py",
        *folders.values(),
        need=["verl", "megatron-lm", "mindspeed"],
        standins=["torch_npu", "megatron_cpu"],
        timeout=300,
    )
    return dict(zip(folders, results, strict=True))


@pytest.mark.on
@pytest.mark.parametrize("model", MODELS)
def test_it_has_every_parameter(found: dict[str, Any], model: str) -> None:
    assert found[model]["lacking"] == []


@pytest.mark.off
@pytest.mark.parametrize("model", MODELS)
def test_a_fused_layer_names_its_weights_once(found: dict[str, Any], model: str) -> None:
    assert found[model]["second_names"] == []


@pytest.mark.off
@pytest.mark.parametrize("model", MODELS)
def test_distributed_checkpoints_give_every_parameter_back(found: dict[str, Any], model: str) -> None:
    assert found[model]["saved_and_loaded"] is True
