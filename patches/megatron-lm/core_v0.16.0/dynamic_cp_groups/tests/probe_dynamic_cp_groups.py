"""Probe: the groups that verl's dynamic_context_parallel asks Megatron-LM for, on real ranks.

Usage: probe_dynamic_cp_groups.py   (four ranks: two tensor parallel, or one; two context parallel)

Prints for tensor parallel sizes 1 and 2 the global ranks of each group that this rank is in, by size, and the sum of its ranks over it;
then which sizes there are once these groups were destroyed and others made without the setting.
"""

import json

import megatron_cpu  # noqa: F401  (first: stands for CUDA)
import torch
import torch.distributed as dist
from megatron.core import parallel_state as mpu


def found(size):
    try:
        group = mpu.get_dynamic_data_context_parallel_groups(group_size=size)
    except KeyError:
        return None
    total = torch.tensor(dist.get_rank())
    dist.all_reduce(total, group=group)
    return [dist.get_process_group_ranks(group), int(total)]


def main():
    dist.init_process_group("gloo")
    made = {}
    for tensor in (1, 2):
        mpu.initialize_model_parallel(tensor, context_parallel_size=2, dynamic_context_parallel=True)
        made[tensor] = {size: found(size) for size in (1, 2, 4)}
        mpu.destroy_model_parallel()
    mpu.initialize_model_parallel(context_parallel_size=2)
    made["without"] = {size: found(size) for size in (1, 2, 4)}
    return made


print(json.dumps(main()))
dist.barrier()
dist.destroy_process_group()
