"""Probe: MindSpeed's ring attention over all processes, with one group and with a second one, against full attention.

Usage: probe_hdp_odd_ring.py one|two   (groups)

Real: RingP2P, ring attention forward and backward, gloo. Prints the largest differences of output and gradients.
"""

import json
import os
import sys
from datetime import timedelta
from types import SimpleNamespace

import npu_attention
import torch
import torch.distributed as dist

HEADS, KEY_HEADS, WIDTH = 4, 2, 8
# Of each group: a rank that waits for a message on the wrong one ends with an error then.
GROUP_TIMEOUT = timedelta(seconds=45)


def use_settings():
    """MindSpeed's arguments, which ring attention reads for two switches, without a command line."""
    import mindspeed.core.context_parallel.ring_context_parallel.ring_context_parallel as ring
    import mindspeed.core.context_parallel.utils as utils

    settings = SimpleNamespace(use_fused_ring_attention_update=True, prof_file=False)
    ring.get_args = utils.get_args = lambda: settings
    return ring.ringattn_context_parallel


def full_attention(query, key, value, lengths):
    ends = torch.tensor(lengths).cumsum(0).tolist()
    return npu_attention.fusion_attention(
        query,
        key,
        value,
        HEADS,
        "TND",
        atten_mask=True,
        sparse_mode=3,
        scale=WIDTH**-0.5,
        actual_seq_qlen=ends,
        actual_seq_kvlen=ends,
    )[0]


def main():
    dist.init_process_group("gloo", timeout=GROUP_TIMEOUT)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    npu_attention.install()
    attention = use_settings()
    everyone = list(range(ranks))
    second = dist.new_group(everyone, timeout=GROUP_TIMEOUT) if sys.argv[1] == "two" else None
    lengths = [8 * ranks, 16 * ranks]
    torch.manual_seed(0)
    inputs = [torch.randn(sum(lengths), heads, WIDTH) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]
    gradient = torch.randn(sum(lengths), HEADS, WIDTH)
    tokens = npu_attention.tokens_of_rank(lengths, rank, ranks)
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    place = {
        "causal": True,
        "cp_group": dist.group.WORLD,
        "cp_size": ranks,
        "rank": rank,
        "cp_global_ranks": everyone,
        "cp_group_for_send_recv_overlap": second,
        "megatron_cp_in_bnsd": False,
    }
    packed = SimpleNamespace(cu_seqlens_q_padded=bounds, cu_seqlens_q=bounds, cu_seqlens_kv=bounds)
    own = [tensor[tokens].clone().requires_grad_() for tensor in inputs]
    output = attention(*own, HEADS, place, packed_seq_params=packed)
    output.backward(gradient[tokens])
    whole = [tensor.clone().requires_grad_() for tensor in inputs]
    expected = full_attention(*whole, lengths)
    expected.backward(gradient)
    pairs = {"output": (output, expected[tokens])}
    pairs |= {
        name: (mine.grad, full.grad[tokens])
        for name, mine, full in zip(("query", "key", "value"), own, whole, strict=True)
    }
    dist.barrier()
    dist.destroy_process_group()
    return {name: float((left - right).abs().max()) for name, (left, right) in pairs.items()}


os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
print(json.dumps(main()))
