"""Probe: groups of dynamic context parallelism, made with MindSpeed's context parallelism in place, and with settings that do not go with it.

Usage: probe_dynamic_cp_argument.py CASES   (a JSON object: name -> what MindSpeed is told)

Two ranks. Real: MindSpeed's adaptor and its wrapper of initialize_model_parallel, Megatron-LM, gloo. A case named "off..." does not ask for
dynamic context parallelism. Prints for each case the groups of one and two ranks that this rank is in, or the error; and whether
Megatron-LM has made any group after it.
"""

import json
import sys
from pathlib import Path

import triton_names

triton_names.install()

import mindspeed_on_cpu  # noqa: E402

ADAPTOR = mindspeed_on_cpu.install()

import torch.distributed as dist  # noqa: E402
from megatron.core import parallel_state as mpu  # noqa: E402

# A repatch keeps what an earlier one said.
DEFAULTS = {
    "context_parallel_size": 2,
    "use_flash_attn": True,
    "context_parallel_algo": "megatron_cp_algo",
    "attention_mask_type": "causal",
    "cp_window_size": 1,
    "apply_rope_fusion": False,
    "use_cp_send_recv_overlap": False,
}


def groups(name, settings):
    ADAPTOR.repatch(DEFAULTS | settings)
    dynamic = {} if name.startswith("off") else {"dynamic_context_parallel": True}
    try:
        mpu.initialize_model_parallel(context_parallel_size=2, **dynamic)
    except (NotImplementedError, TypeError) as error:
        return {"error": f"{type(error).__name__}: {error}", "made": mpu.is_initialized()}
    file = mpu.initialize_model_parallel.__code__.co_filename
    found = {"wrapped": Path(file).stem, "context": mpu.get_context_parallel_world_size()}
    if dynamic:
        sizes = {size: mpu.get_dynamic_data_context_parallel_groups(group_size=size) for size in (1, 2)}
        found |= {size: dist.get_process_group_ranks(group) for size, group in sizes.items()}
    mpu.destroy_model_parallel()
    return found


def main(cases):
    dist.init_process_group("gloo")
    return {name: groups(name, settings) for name, settings in json.loads(cases).items()}


print(json.dumps(main(sys.argv[1])))
dist.barrier()
dist.destroy_process_group()
