"""Probe: how many tokens Megatron-LM's router counts for the bias of each expert, with padding that it is told of.

Usage: probe_expert_bias_padding.py   (one rank)

Prints for 6 tokens, 4 tokens (as many as experts), and 6 without a mask: the experts of each token, and the counts or the error.
"""

import json

import tiny_megatron  # first: stands for CUDA
import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.moe.router import TopKRouter

EXPERTS = 4
# Without Transformer Engine the module compares a name that it has not defined.
moe_utils.te_general_gemm = None


def router():
    config = tiny_megatron.config(
        num_moe_experts=EXPERTS,
        moe_router_topk=2,
        moe_router_score_function="sigmoid",
        moe_router_enable_expert_bias=True,
        moe_router_load_balancing_type="none",
    )
    torch.manual_seed(0)
    made = TopKRouter(config, ProcessGroupCollection.use_mpu_process_groups())
    torch.nn.init.normal_(made.weight)
    return made


def counted(tokens, padding):
    made = router()
    hidden = torch.randn(tokens, 1, 64, generator=torch.Generator().manual_seed(tokens))
    mask = None
    if padding:
        mask = torch.zeros(tokens, 1, dtype=torch.bool)
        mask[-padding:] = True
    try:
        _, chosen = made(hidden, mask)
    except RuntimeError as error:
        return {"error": str(error)}
    return {"error": None, "chosen": chosen.int().tolist(), "counts": made.local_tokens_per_expert.int().tolist()}


tiny_megatron.initialise()
print(json.dumps({"six": counted(6, 2), "four": counted(4, 2), "none": counted(6, 0)}))
torch.distributed.destroy_process_group()
