"""Probe: what the switch refuses, with its messages: configurations, and models."""

import copy
import json
from types import SimpleNamespace

import probe_hdp_model as tiny
import torch
from hdp_settings import ACCEPTED, PATCHED, RANKS, RANKS_OF_REFERENCE, SWITCH, composed, said
from verl.utils.hybrid_data_parallel import setup

BY_TIME = f"{SWITCH.removesuffix('=True')}_by_time=True"
COSTS = f"{SWITCH.removesuffix('=True')}_costs"
DYNAMIC = "actor_rollout_ref.actor.use_dynamic_bsz=True"
CONFIGURATIONS = {
    "accepted": ACCEPTED,
    "one rank": [SWITCH],
    "by time without it": [BY_TIME, DYNAMIC],
    "by time with rows": [*ACCEPTED, BY_TIME],
    "costs without it": [f"{COSTS}.ring_share=0.1"],
    "costs": [*ACCEPTED, f"{COSTS}.quadratic_length=0"],
    "no such cost": [*ACCEPTED, f"+{COSTS}.ring_steps=1"],
    "costs accepted": [*ACCEPTED, f"{COSTS}.quadratic_length=61000", f"{COSTS}.ring_step=0"],
    "by time accepted": [*ACCEPTED, BY_TIME, DYNAMIC],
    "MindSpeed left as it was": [SWITCH, RANKS, RANKS_OF_REFERENCE],
    "fused kernels": [*ACCEPTED, "actor_rollout_ref.model.use_fused_kernels=True"],
    "reference alone": ["actor_rollout_ref.ref.megatron.hybrid_data_parallel=True"],
    "reference on one rank": [SWITCH, RANKS, PATCHED],
    "reference that is plain": [SWITCH, RANKS, PATCHED, "actor_rollout_ref.ref.megatron.hybrid_data_parallel=False"],
}
TRANSFORMERS = {
    "latent attention": {"multi_latent_attention": True},
    "multi-token prediction": {"mtp_num_layers": 1},
    "fixed lengths": {"variable_seq_lengths": False, "pipeline_model_parallel_size": 2},
    "allgather": {"num_moe_experts": 4, "moe_token_dispatcher_type": "allgather"},
    "auxiliary loss": {
        "num_moe_experts": 4,
        "moe_router_load_balancing_type": "aux_loss",
        "moe_aux_loss_coeff": 0.01,
    },
    "z loss": {"num_moe_experts": 4, "moe_z_loss_coeff": 0.001},
    "capacity": {"num_moe_experts": 4, "moe_expert_capacity_factor": 1.0},
}


def models():
    """An actor of one process: its attention is no ring, and settings of its transformer are varied."""
    tiny.use_parallel()
    config = tiny.transformer_config()
    ddp = tiny.model(config, one_process=True)
    found = {"attention": said(lambda: setup.prepare([ddp], config))}
    for name, changes in TRANSFORMERS.items():
        other = copy.copy(config)
        vars(other).update(changes)
        found[name] = said(lambda other=other: setup.prepare([ddp], other))
    return found


def mindspeed():
    """Settings of MindSpeed's own that its attention refuses."""
    from mindspeed.core.context_parallel.packed_group import why_not_packed_cp_group

    settings = {
        "accepted": {},
        "algorithm": {"context_parallel_algo": "ulysses_cp_algo"},
        "mask": {"attention_mask_type": "general"},
        "reset": {"reset_attention_mask": True},
        "2d": {"tp_2d": True},
    }
    return {name: why_not_packed_cp_group(SimpleNamespace(**one)) for name, one in settings.items()}


def main():
    tiny.use_reference_operators()
    configurations = {
        name: said(lambda lines=lines: setup.check_config(composed(*lines).actor_rollout_ref, True))
        for name, lines in CONFIGURATIONS.items()
    }
    result = {"configurations": configurations, "models": models(), "mindspeed": mindspeed()}
    torch.distributed.destroy_process_group()
    return result


print(json.dumps(main()))
