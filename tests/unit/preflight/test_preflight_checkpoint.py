"""How large a checkpoint is: of all parameters with their optimizer, of adapters with the whole model and an optimizer that counts for nothing."""

from __future__ import annotations

import pytest

from patchctl.training.models import read_model
from patchctl.training.preflight.memory import bytes_of_checkpoint
from patchctl.training.recipes.conditions import Facts

MODEL = read_model(
    {
        "model_type": "qwen3",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 1000,
    }
)


@pytest.mark.parametrize(
    ("strategy", "lora", "bytes_of_a_parameter"),
    [
        ("fsdp", {}, 12),
        ("megatron", {}, 14),
        ("fsdp2", {"actor_rollout_ref.model.lora_rank": "32"}, 4),
        ("fsdp", {"actor_rollout_ref.model.lora_rank": "0"}, 12),
        ("megatron", {"actor_rollout_ref.model.lora.rank": "16"}, 2),
    ],
)
def test_the_bytes_of_one_checkpoint(strategy: str, lora: dict[str, str], bytes_of_a_parameter: int) -> None:
    facts = Facts({"actor_rollout_ref.actor.strategy": strategy, **lora}, {})
    assert bytes_of_checkpoint(MODEL, facts) == MODEL.parameters * bytes_of_a_parameter
