"""swap_optimizer_state: optimizer states that lie on the host are saved, and a load puts them there."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness import Upstream
from models import TinyModels

PROBE = "probe_swap_optimizer_state.py"
TREES: dict[str, Any] = {
    "need": ["megatron-lm", "mindspeed"],
    "standins": ["torch_npu", "megatron_cpu"],
    "timeout": 240,
}
SWAPPED = {"swap_optimizer": True, "use_distributed_optimizer": True}


def run(upstream: Upstream, settings: dict[str, bool], *formats: str) -> Any:
    return upstream.run(PROBE, json.dumps(settings), *formats, **TREES)


@pytest.mark.on
def test_states_on_the_host_are_saved_and_loaded(upstream: Upstream) -> None:
    """In verl's default format. Of the one weight that the model has in float32 the moments alone are on the host."""
    on_host = {"param": 14, "exp_avg": 15, "exp_avg_sq": 15}
    assert run(upstream, SWAPPED, "dp_reshardable")["dp_reshardable"] == {
        "parameters": 15, "before": on_host, "apart": True, "error": None, "after": on_host, "different": [0, 0],
    }  # fmt: skip


@pytest.mark.on
def test_a_save_right_behind_a_step_waits_for_its_copies_to_the_host(upstream: Upstream) -> None:
    saved = run(upstream, SWAPPED, "late dp_reshardable")["late dp_reshardable"]
    assert saved["late"] > 100
    assert saved["error"] is None
    assert saved["different"] == [0, 0]


@pytest.fixture(scope="module")
def unswapped(upstream: Upstream) -> Any:
    return run(upstream, {"swap_optimizer": False}, "dp_reshardable", "fully_reshardable")


@pytest.mark.off
def test_without_swap_optimizer_the_states_are_the_devices(unswapped: Any) -> None:
    nothing = {"param": 0, "exp_avg": 0, "exp_avg_sq": 0}
    assert unswapped["dp_reshardable"] == {
        "parameters": 15, "before": nothing, "apart": True, "error": None, "after": nothing, "different": [0, 0],
    }  # fmt: skip


@pytest.mark.off
def test_mindspeed_loads_no_fully_reshardable_checkpoint(unswapped: Any) -> None:
    """verl's other format is not of this patch: MindSpeed's load_state_dict does not know it, whatever is swapped."""
    assert unswapped["fully_reshardable"]["error"] == "NotImplementedError: Unknown sharding_type: fully_reshardable"


def verl(upstream: Upstream, models: TinyModels, **settings: bool) -> Any:
    standins = [*TREES["standins"], "npu_attention", "npu_training", "npu_training_0_9", "torchvision"]
    trees = TREES | {"need": ["verl", *TREES["need"]], "standins": standins}
    return upstream.run("probe_swap_optimizer_verl.py", models.qwen3, json.dumps(settings), **trees)


@pytest.mark.on
def test_verls_engine_goes_on_from_its_checkpoint(upstream: Upstream, tiny_models: TinyModels) -> None:
    """Of two engines in one process, as an actor and its reference are, one loads what the other saved."""
    made = verl(upstream, tiny_models, **SWAPPED)
    assert made["optimizer"] == "SwapDistributedOptimizer"
    assert made["without memory"] == {"param": 19, "exp_avg": 19, "exp_avg_sq": 19}
    assert made["different"] == [True, 0, 0, 0]
    assert made["rates"] == [0.005, 0.005]


@pytest.mark.misuse
def test_verls_engine_has_to_tell_of_the_distributed_optimizer(upstream: Upstream, tiny_models: TinyModels) -> None:
    """Upstream's own refusal, before a model is made. verl tells MindSpeed what override_transformer_config has, and nothing else."""
    refused = verl(upstream, tiny_models, swap_optimizer=True)
    assert refused == {"refused": "swap_optimizer requires use_distributed_optimizer."}
