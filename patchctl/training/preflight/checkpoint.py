"""How large one checkpoint of a run is: of all parameters with their optimizer, or of adapters (LoRA)."""

from __future__ import annotations

from patchctl.training.models.parameters import Model
from patchctl.training.preflight.memory import BF16, FP32, checkpoint_bytes
from patchctl.training.recipes.conditions import Facts

# FSDP's key, and that of Megatron-LM from verl 0.9 on.
_RANKS = ("actor_rollout_ref.model.lora_rank", "actor_rollout_ref.model.lora.rank")


def trains_adapters(facts: Facts) -> bool:
    """Whether a run trains adapters beside weights that stay as they are."""
    return any((facts.text(key) or "0") != "0" for key in _RANKS)


def bytes_of_one(model: Model, facts: Facts) -> int:
    """Of adapters verl saves the whole model all the same (fsdp_checkpoint_manager.py, save_lora_only is False), and an optimizer of the
    adapters alone, which are about a hundredth and count for nothing here."""
    strategy = facts.text("actor_rollout_ref.actor.strategy") or "fsdp"
    if not trains_adapters(facts):
        return checkpoint_bytes(model, strategy)
    return model.parameters * (BF16 if strategy == "megatron" else FP32)
