"""Probe: whether verl's FSDP engines compile the entropy, of the actor and of the reference, under a composed configuration.

Usage: probe_fsdp_torch_compile.py VERL CASES, a JSON object of name to a list of overrides. Real: the composition, verl's classes for it, and
the constructor of its engine, which chooses; the model's configuration is what it asks of it. Prints {name: [actor's, reference's]}.
"""

import json
import os
import sys
import types

import torch
from omegaconf import open_dict
from recipe_compose import composed
from transformers import Qwen3Config
from verl.utils import torch_functional
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

# Without which the classes are not made.
MICRO = [
    f"actor_rollout_ref.{one}_micro_batch_size_per_gpu=1" for one in ("actor.ppo", "ref.log_prob", "rollout.log_prob")
]


def reference(config):
    """The reference's configuration with the names that init_model of verl's worker gives it."""
    with open_dict(config.ref):
        config.ref.ppo_mini_batch_size = config.actor.ppo_mini_batch_size
        config.ref.use_dynamic_bsz = config.ref.pop("log_prob_use_dynamic_bsz", False)
        for name in ("micro_batch_size", "micro_batch_size_per_gpu", "max_token_len_per_gpu"):
            config.ref[f"ppo_{name}"] = config.ref.pop(f"log_prob_{name}", None)
    return config.ref


def compiles(config):
    """config is a DictConfig of an actor or a reference."""
    made = omega_conf_to_dataclass(config)
    model = types.SimpleNamespace(
        use_remove_padding=True, lora_rank=0, hf_config=Qwen3Config(), model_type="language_model"
    )
    engine = FSDPEngineWithLMHead(model, made.engine, made.optim, made.checkpoint)
    assert engine.engine_config is made.engine
    return engine.compute_entropy_from_logits is not torch_functional.entropy_from_logits


def main():
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "0")
    verl = os.path.abspath(sys.argv[1])
    torch.distributed.init_process_group("gloo", rank=0, world_size=1)
    found = {}
    for name, overrides in json.loads(sys.argv[2]).items():
        job = {
            "module": "verl.trainer.main_ppo",
            "folder": ".",
            "config": "ppo_trainer",
            "overrides": [*MICRO, *overrides],
        }
        config = composed(verl, job).actor_rollout_ref
        found[name] = [compiles(config.actor), compiles(reference(config))]
    print(json.dumps(found))
    torch.distributed.destroy_process_group()


main()
