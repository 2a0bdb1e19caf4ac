"""Probe: slots of tokens in the cache by the stand-in for vllm's kernel, and by vllm-ascend's own numpy code for drafts."""

import json
from types import SimpleNamespace

import numpy as np
import torch
from npu_engine_0_23 import SlotMapping
from vllm_ascend.worker.block_table import PAD_SLOT_ID, BlockTable

BLOCK, WIDTH, TOKENS = 16, 5, 128
LENGTHS, BEGINNINGS = (1, 17, 40, 2), (0, 31, 7, 78)  # tokens of a request in the step, and those that it had before


def main():
    table = torch.randperm(len(LENGTHS) * WIDTH, generator=torch.Generator().manual_seed(0)).int().view(-1, WIDTH)
    starts = torch.tensor([0, *np.cumsum(LENGTHS)], dtype=torch.int32)
    positions = torch.cat([torch.arange(n) + at for n, at in zip(LENGTHS, BEGINNINGS, strict=True)])
    of_kernel = torch.full((TOKENS,), -7)
    constants = {"TOTAL_CP_RANK": 0, "CP_KV_CACHE_INTERLEAVE_SIZE": 1, "PAD_ID": PAD_SLOT_ID, "BLOCK_SIZE": 1024}
    arguments = (len(positions), TOKENS, starts, positions, table, WIDTH, BLOCK, of_kernel)
    kernel = SlotMapping()[(len(LENGTHS) + 1,)]
    kernel(*arguments, TOTAL_CP_WORLD_SIZE=1, **constants)
    try:
        kernel(*arguments, TOTAL_CP_WORLD_SIZE=2, **constants)
        refused = False
    except NotImplementedError:
        refused = True
    slots = SimpleNamespace(np=np.zeros(TOKENS, dtype=np.int64), copy_to_gpu=lambda count: None)
    own = SimpleNamespace(
        dcp_world_size=1,
        pcp_world_size=1,
        kernel_sizes=[BLOCK],
        block_size=BLOCK,
        blocks_per_phys_block=1,
        max_num_blocks_per_req=WIDTH,
        block_table=SimpleNamespace(np=table.numpy()),
        slot_mapping=slots,
    )
    BlockTable.compute_slot_mapping_draft(own, np.repeat(np.arange(len(LENGTHS)), LENGTHS), positions.numpy())
    count = len(positions)
    result = {"slots": of_kernel[:count].tolist(), "numpy": slots.np[:count].tolist(), "refused": refused}
    print(json.dumps(result | {"padding": sorted({*of_kernel[count:].tolist()})}))


main()
