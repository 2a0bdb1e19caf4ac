"""dpskv3_group_routing: verl's Megatron actor routes a tiny DeepSeek-V3 (four groups, one is chosen) as Hugging Face's does.

Real: verl's worker and conversion, Megatron's model, MindSpeed's adaptor and layers. Stood for are the device and the operators
of an NPU (standins/megatron_cpu, standins/npu_attention).
"""

from __future__ import annotations

from typing import Any

import pytest
from deepseek_actor import Actors
from harness import Upstream

# bf16 against float32; where tokens are routed over all groups it is a third of the values' range.
CLOSE = 0.02
GROUPS = "+actor_rollout_ref.actor.megatron.override_transformer_config.moe_router_num_groups"
CHOSEN = "+actor_rollout_ref.actor.megatron.override_transformer_config.moe_router_group_topk"


@pytest.fixture(scope="module")
def found(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Any:
    overridden = {"overrides": [f"{GROUPS}=2", f"{CHOSEN}=1"]}
    return Actors(upstream, tmp_path_factory.mktemp("deepseek")).run({"own": {}, "overridden": overridden})


@pytest.mark.on
def test_tokens_go_to_the_experts_that_the_model_chooses(found: Any) -> None:
    difference, values = found["own"]["log_probs"]
    assert found["own"]["routing"] == [4, 1]
    assert difference < CLOSE * values


@pytest.mark.on  # upstream's trees alone cannot train such a model
def test_what_is_set_for_megatron_comes_last(found: Any) -> None:
    difference, values = found["overridden"]["log_probs"]
    assert found["overridden"]["routing"] == [2, 1]
    assert difference > CLOSE * values
