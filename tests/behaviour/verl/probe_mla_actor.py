"""Probe: verl's Megatron actor of a DeepSeek-V3, loaded from a converted checkpoint, and what it gives to the rollout.

Usage: probe_mla_actor.py JOBS   (with several processes: the ranks of each job's parallel sizes)
JOBS is JSON, each {"model": folder, "checkpoint": folder} and, when wanted, "parallel" ({"ep", "tp", "pp"}) and "overrides".
Prints for each "log_probs" (as actor_log_probs says), "attention" (widths and scale of the first layer's), "routing" (the groups
that Megatron was told) and "exported" (what `grouped_worker.compared` finds of the tensors for the rollout), or "error".
"""

import grouped_worker as gw  # first: it makes torch and verl run on a CPU

# isort: split
import json
import sys

import torch.distributed as dist
from actor_log_probs import log_probs, use_reference_operators
from verl.utils.megatron_utils import unwrap_model

FLASH = "+actor_rollout_ref.actor.megatron.override_transformer_config.use_flash_attn=True"


def attention(module):
    core = unwrap_model(module[0]).decoder.layers[0].self_attention.core_attention
    return [
        type(core).__name__,
        core.hidden_size_per_attention_head,
        core.hidden_size_per_partition,
        core.softmax_scale,
    ]


def result(job):
    gw.use_parallel(job.get("parallel", {}))
    try:
        worker, module, _ = gw.loaded_worker(job | {"overrides": [FLASH, *job.get("overrides", [])]})
        found = log_probs(worker, job["model"])
    except TypeError as error:
        return {"error": str(error)}
    return {
        "error": None,
        "log_probs": found,
        "attention": attention(module),
        "routing": [worker.tf_config.moe_router_num_groups, worker.tf_config.moe_router_group_topk],
        "exported": gw.compared(gw.given_to_rollout(worker, module), job["model"]),
    }


def main():
    use_reference_operators()
    results = [result(job) for job in json.loads(sys.argv[1])]
    dist.destroy_process_group()
    print(json.dumps(results))


main()
