"""Probe: the Megatron-LM configuration that verl v0.9.0's engine makes of a recipe and of its model's own, by mbridge.

Usage: probe_megatron_config_v1.py VERL JOBS, JOBS being a file of [{..., "model": {...}}], as probe_recipes_v1.py's with the model's config.json.
Real: the composed configuration, the engine's _build_tf_config, mbridge, Megatron-LM's configuration with its checks. The sizes of the groups
are told to Megatron-LM, and one process is there. Settings of MindSpeed, whose adaptor a CPU does not have, are left out and named.
Prints for each {"error": null or what was raised, "left out": [...], "made": {field: value}}.
"""

import dataclasses
import json
import os
import sys
import types

import tiny_megatron  # before megatron: it replaces torch.cuda
import torch
from megatron.core import parallel_state
from megatron.core.transformer.transformer_config import MLATransformerConfig
from omegaconf import open_dict
from recipe_compose import composed
from transformers import AutoConfig
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.engine.megatron.transformer_impl import MegatronEngineWithLMHead

FIELDS = {field.name for field in dataclasses.fields(MLATransformerConfig)}
LATENT = ("rope_type", "rotary_base", "rotary_scaling_factor", "original_max_position_embeddings", "mscale_all_dim")
MADE = (
    "num_layers",
    "hidden_size",
    "num_moe_experts",
    "moe_router_topk",
    "pipeline_model_parallel_size",
    "recompute_granularity",
    "moe_router_num_groups",
    "moe_router_group_topk",
    "moe_shared_expert_overlap",
    "mtp_num_layers",
    *LATENT,
)


def main():
    verl = os.path.abspath(sys.argv[1])
    with open(sys.argv[2], encoding="utf-8") as file:
        jobs = json.load(file)
    tiny_megatron.initialise()
    print(json.dumps([looked_at(verl, job) for job in jobs]))
    torch.distributed.destroy_process_group()


def looked_at(verl, job):
    megatron = composed(verl, job).actor_rollout_ref.actor.megatron
    told = megatron.override_transformer_config
    left_out = sorted(key for key in told if key not in FIELDS)
    with open_dict(told):
        for key in left_out:
            del told[key]
    for kind in ("tensor", "pipeline", "expert"):
        getattr(parallel_state, f"set_{kind}_model_parallel_world_size")(megatron[f"{kind}_model_parallel_size"])
    parallel_state.set_expert_tensor_parallel_world_size(megatron.expert_tensor_parallel_size or 1)
    hf = AutoConfig.for_model(**job["model"])
    try:
        config = configuration(omega_conf_to_dataclass(megatron), hf)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "left out": left_out, "made": {}}
    return {"error": None, "left out": left_out, "made": {name: getattr(config, name, None) for name in MADE}}


def configuration(engine_config, hf):
    made = MegatronEngineWithLMHead.__new__(MegatronEngineWithLMHead)
    made.engine_config = engine_config
    made.model_config = types.SimpleNamespace(
        hf_config=hf,
        model_type="language_model",
        share_embeddings_and_output_weights=False,
        mtp=types.SimpleNamespace(enable=False, enable_train=False),
    )
    made.enable_routing_replay = False
    made._build_tf_config()
    return made.tf_config


main()
