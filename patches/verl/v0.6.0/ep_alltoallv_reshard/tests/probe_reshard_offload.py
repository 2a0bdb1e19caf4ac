"""Probe: the records of which ep_alltoallv_reshard makes its exchange, of a model in memory and of the same one offloaded.

Usage: probe_reshard_offload.py FAMILY...   With param_offload=True the worker gives the storage of all parameters up before
it makes the exchange (offload_megatron_model_to_cpu).
"""

import json
import os
import sys

import megatron_cpu
import torch.distributed as dist
from megatron.core import mpu
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig

os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")


def records(family):
    from probe_reshard_models import Model
    from verl.utils.ep_reshard_exchange import expert_weights
    from verl.utils.megatron_utils import offload_megatron_model_to_cpu

    model = Model(family)
    config = DistributedDataParallelConfig(use_distributed_optimizer=True)
    chunks = [DistributedDataParallel(model.tf, config, chunk) for chunk in model.chunks]
    before = expert_weights(chunks, model.tf)
    offload_megatron_model_to_cpu(chunks)
    experts = [weight for name, weight in chunks[0].named_parameters() if ".experts." in name]
    empty = all(weight.untyped_storage().size() == 0 for weight in experts)
    try:
        after = expert_weights(chunks, model.tf)
    except RuntimeError as error:
        return {"offloaded": empty, "error": str(error)}
    return {"offloaded": empty, "records": len(before), "same": before == after}


def main():
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    mpu.initialize_model_parallel(expert_tensor_parallel_size=1)
    megatron_cpu.adapt_megatron()
    return {family: records(family) for family in sys.argv[1:]}


# Without an accelerator there is nothing to pin for; pinned memory is memory of its own.
megatron_cpu.torch.Tensor.pin_memory = lambda self, *args: self.clone()
print(json.dumps(main()))
