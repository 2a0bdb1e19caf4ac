"""Probe: how Megatron-LM's scheduler of dynamic context parallelism packs sequences, and what is refused.

Usage: probe_dynamic_cp_packing.py CASES   (a JSON object: name -> [ranks, tensor parallel size, tokens a rank, lengths])

Prints for each case the micro-batches, of each the sample ids of each rank, or the error; and what other wrong calls end with. Tensor
parallel size and the six ranks of a call come from a process group without any messages.
"""

import json
import os
import sys

import megatron_cpu  # noqa: F401  (first: stands for CUDA)
import torch.distributed as dist
from megatron.core import parallel_state as mpu
from megatron.core.datasets.data_schedule import DefaultDynamicCPScheduler
from megatron.core.model_parallel_config import ModelParallelConfig
from torch.testing._internal.distributed.fake_pg import FakeStore

WRONG = ["ring=1", "ring_share", "ring_share=-1", "ring_step=nan", "quadratic_length=0", "ring_share=0.1;ring_step=2"]
COSTS = " quadratic_length=3000, ring_share=2,ring_step=0"


def packed(ranks, tensor, tokens, lengths):
    mpu.set_tensor_model_parallel_world_size(tensor)
    scheduler = DefaultDynamicCPScheduler(
        max_seqlen_per_dp_cp_rank=tokens, cp_size=2 if ranks > 1 else 1, dp_size=max(ranks // 2, 1)
    )
    return scheduler.get_groups_and_subsamples(list(enumerate(lengths)))


def tried(call, *args, **settings):
    try:
        return call(*args, **settings)
    except (ValueError, NotImplementedError) as error:
        return f"{type(error).__name__}: {error}"


def initialised(ranks):
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    found = tried(mpu.initialize_model_parallel, context_parallel_size=2, dynamic_context_parallel=True)
    dist.destroy_process_group()
    return found, mpu.is_initialized()


def with_costs(costs, call, *args):
    os.environ["MEGATRON_DYNAMIC_CP_COSTS"] = costs
    try:
        return tried(call, *args)
    finally:
        del os.environ["MEGATRON_DYNAMIC_CP_COSTS"]


def main(cases):
    made = {name: tried(packed, *case) for name, case in json.loads(cases).items()}
    return made | {
        "six ranks": initialised(6),
        "stages": tried(DefaultDynamicCPScheduler, 16, 2, 2, 3),
        "configuration": tried(ModelParallelConfig, dynamic_context_parallel=True),
        "wrong costs": {text: with_costs(text, DefaultDynamicCPScheduler, 16, 2, 2) for text in WRONG},
        "wrong costs at start": with_costs(WRONG[0], initialised, 4),
        "costs": {
            name: with_costs(COSTS, packed, *case) for name, case in json.loads(cases).items() if "sequences" in name
        },
    }


print(json.dumps(main(sys.argv[1])))
