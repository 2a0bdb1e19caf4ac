"""Probe: MindSpeed's rotary embedding with apply_rope_fusion, of packed sequences that two ranks share. Run with two processes.

Stood for is apex's operator, which an NPU's environment may have: it takes each sequence's tokens from the first on, and knows no
ranks. Printed are differences from whole sequences, and how often the operator was called.
"""

import mindspeed_on_cpu

ADAPTOR = mindspeed_on_cpu.install()

import json  # noqa: E402
from types import SimpleNamespace  # noqa: E402

import npu_attention  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.core import parallel_state as mpu  # noqa: E402
from mindspeed.core.fusions import fused_rope  # noqa: E402

WIDTH, LENGTHS = 8, [8, 24]
CONFIG = SimpleNamespace(apply_rope_fusion=True, rotary_interleaved=False, multi_latent_attention=False)
CALLS = []


def turned(tensor, angles):
    first, second = tensor.chunk(2, -1)
    return tensor * angles.cos() + torch.cat([-second, first], -1) * angles.sin()


def operator(tensor, bounds, angles):
    """apex.transformer.functional.fused_apply_rotary_pos_emb_thd: [tokens, heads, width], positions by `bounds` alone."""
    CALLS.append(len(tensor))
    place = torch.arange(len(tensor))
    start = bounds[torch.searchsorted(bounds, place, right=True) - 1]
    return turned(tensor, angles[place - start, 0])


def main():
    dist.init_process_group("gloo")
    ADAPTOR.repatch({"context_parallel_size": 2})
    mpu.initialize_model_parallel(context_parallel_size=2)
    fused_rope.HAVE_APPLY_ROPE_FUSION, fused_rope.fused_apply_rotary_pos_emb_thd = True, operator
    angles = torch.outer(torch.arange(64.0), 10000 ** (-torch.arange(0, WIDTH, 2) / WIDTH))
    angles = torch.cat([angles, angles], -1)[:, None, None, :]
    tensor = torch.randn(sum(LENGTHS), 2, WIDTH, generator=torch.Generator().manual_seed(1))
    bounds = torch.tensor([0, *LENGTHS]).cumsum(0).int()
    whole = operator(tensor, bounds, angles)
    own = npu_attention.tokens_of_rank(LENGTHS, dist.get_rank(), 2)
    alone = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
    CALLS.clear()

    def far(tokens, group):
        found = fused_rope.apply_rotary_pos_emb(tensor[tokens], angles, CONFIG, cu_seqlens=bounds, cp_group=group)
        return (found - whole[tokens]).abs().max().item()

    result = {
        "shared": far(own, dist.new_group([0, 1])),
        "alone": far(torch.arange(len(tensor)), alone),
        "calls": len(CALLS),
    }
    result |= {"without a group": far(torch.arange(len(tensor)), None), "its calls": len(CALLS)}
    dist.barrier()
    dist.destroy_process_group()
    return result


print(json.dumps(main()))
