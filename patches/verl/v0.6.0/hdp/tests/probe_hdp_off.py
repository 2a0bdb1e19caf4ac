"""Probe: verl's Megatron code without MindSpeed and with the switch off; what is imported, how a batch is cut, and the
workers and the engine that are made. On a patched tree also: what the switch says without MindSpeed.
"""

import json
import os
import sys

import megatron_cpu  # before megatron
import torch
import torch.distributed as dist
from hdp_settings import RANKS, RANKS_OF_REFERENCE, SWITCH, composed, make, place, said
from megatron.core import mpu
from tensordict import TensorDict
from verl.utils.seqlen_balancing import rearrange_micro_batches

LENGTHS = [60, 12, 9, 14, 8, 30, 7, 10]


def cut():
    """Indices of the micro-batches of LENGTHS with 80 tokens at most."""
    mask = (torch.arange(64) < torch.tensor(LENGTHS)[:, None]).long()
    batch = TensorDict({"input_ids": mask, "attention_mask": mask}, batch_size=len(LENGTHS))
    micro_batches, indices = rearrange_micro_batches(batch=batch, max_token_len=80)
    return indices, sorted(micro_batches[0].keys())


def workers():
    """The places of all that can be made; the process groups are there, so that workers look for no device."""
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    dist.init_process_group("gloo")
    mpu.initialize_model_parallel()
    megatron_cpu.adapt_megatron()
    names = ("actor_rollout", "ref", "critic", "reward model")
    places = {name: place(name, make(name, composed())) for name in names}
    mpu.destroy_model_parallel()  # an engine makes them itself
    places["MegatronEngine"] = place("MegatronEngine", make("MegatronEngine", composed()))
    dist.destroy_process_group()
    return places


def refused():
    """What is said where there is no MindSpeed: None for the switch off. Nothing of a tree without the switch."""
    try:
        from verl.utils.hybrid_data_parallel.setup import check_config
    except ModuleNotFoundError:
        return {}
    cases = {"off": [], "on": [SWITCH, RANKS, RANKS_OF_REFERENCE]}
    sections = {name: composed(*lines).actor_rollout_ref for name, lines in cases.items()}
    return {name: said(lambda one=one: check_config(one, mindspeed_is_there=False)) for name, one in sections.items()}


def main():
    indices, keys = cut()
    result = {"indices": indices, "keys": keys, "workers": workers()}
    result["mindspeed"] = [name for name in sys.modules if name.split(".")[0] == "mindspeed"]
    result["packing"] = "verl.utils.hybrid_data_parallel.packing" in sys.modules
    return result | {"refused": refused()}


print(json.dumps(main()))
