"""Probe: the experts of two tensor parallel ranks that share out an odd number of tokens, whole and in chunks.

Usage: probe_chunked_shares.py MODEL TOKENS SIZE, on two processes. Upstream's own `prepare` of all-to-all makes the shares. Printed: how many tokens
each call of the dispatcher was given, and the difference of chunked from whole.
"""

import json
import sys

import npu_experts_0_23

npu_experts_0_23.prepare(device="A3")

import chunked_moe_cases as cases  # noqa: E402  (what imports vllm comes after the preparation)
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from chunked_moe_ranks import make_layer, start  # noqa: E402
from vllm_ascend.ascend_forward_context import set_ascend_forward_context  # noqa: E402


def computed(config, comm, size):
    comm.chunk_size = size
    hidden, logits = (
        torch.randn(TOKENS, width, generator=cases.generator(80)) for width in (cases.HIDDEN, cases.EXPERTS)
    )
    with (
        cases.exchanged_by("ALLTOALL"),
        set_ascend_forward_context(None, config, num_tokens=TOKENS),
        cases.dispatched(comm) as calls,
        torch.inference_mode(),
    ):
        share = comm.prepare(hidden, logits)
        weight, ids = share.router_logits.softmax(-1).topk(2, -1)
        given = {"hidden_states": share.hidden_states, "topk_weights": weight, "topk_ids": ids.int()} | cases.weights()
        out = comm.fused_experts(cases.experts_input(given)).routed_out
    return [call["hidden_states"] for call in calls], out


TOKENS, SIZE = int(sys.argv[2]), int(sys.argv[3])
config = start(sys.argv[1])
make_layer(config, {"experts": cases.EXPERTS, "k": 2, "hidden": cases.HIDDEN, "width": cases.WIDTH})
comm = cases.method("ALLTOALL")
(_, whole), (given, chunked) = computed(config, comm, 0), computed(config, comm, SIZE)
dist.barrier()
dist.destroy_process_group()
print(json.dumps({"given": given, "difference": cases.difference(chunked, whole)}))
