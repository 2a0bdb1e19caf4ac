"""te_state_dict: the state_dict of a model with MindSpeed's fused layers has every parameter, each once.

Real: MindSpeed's layers in verl's Megatron models, and verl's checkpoints; see standins/megatron_cpu/mindspeed_on_cpu.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from harness import Upstream

MODELS = ["qwen3", "qwen3_moe"]
Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def run(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Builds models by name, and returns what the probe found in each."""

    def run(*names: str) -> dict[str, Any]:
        for name in ("verl", "megatron-lm", "mindspeed"):
            upstream.tree(name)
        folders = upstream.run(
            "tests/behaviour/verl/tiny_moe_models.py", tmp_path_factory.mktemp("models"), *names, timeout=180
        )
        results = upstream.run(
            "probe_te_state_dict.py",
            *folders.values(),
            need=["verl", "megatron-lm", "mindspeed"],
            standins=["torch_npu", "megatron_cpu"],
            timeout=300,
        )
        return dict(zip(folders, results, strict=True))

    return run


@pytest.fixture(scope="module")
def found(run: Run) -> dict[str, Any]:
    return run(*MODELS)


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


@pytest.mark.on
def test_a_model_with_latent_attention(run: Run) -> None:
    """Upstream cannot build it without the patch mla_attention_sizes, so that nothing of it can be seen switched off."""
    found = run("deepseek_v3")["deepseek_v3"]
    assert (found["lacking"], found["second_names"], found["saved_and_loaded"]) == ([], [], True)
