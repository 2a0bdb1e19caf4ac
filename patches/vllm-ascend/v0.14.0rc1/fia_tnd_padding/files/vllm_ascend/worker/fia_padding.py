# This file is a part of the vllm-ascend project.
"""Requests that take the padding of a full graph for mixed batches, so that FIA's lengths fit its query.

In layout TND npu_fused_infer_attention_score of CANN 8.5.0 refuses (error 561002) a query with other than
`actual_seq_lengths[-1]` rows, and lengths and block tables of unequal numbers of requests (CheckFAISeqlenDataInTND in
fused_infer_attention_score_tiling.cpp, CheckActualSeqLensQ, CheckActualSeqLensKv and CheckBlockTable beside it, in
CANN's ops-transformer). In a captured graph the rows of the query and of the block table are those of the capture; only
the lengths are updated for a replay.

With cudagraph_mode FULL one graph of n tokens replays any batch of up to n tokens. It is captured with as many requests
as such a batch can have, and one more where the padding may need it; before a replay the batch is brought to that
number with requests that have no keys. Where full graphs hold uniform decode only (FULL_DECODE_ONLY), NPUModelRunner
pads.
"""

from typing import TYPE_CHECKING

import numpy as np
from vllm.config import CUDAGraphMode

if TYPE_CHECKING:
    from vllm_ascend.worker.model_runner_v1 import NPUModelRunner


def padded_for_step(runner: "NPUModelRunner", num_reqs: int, num_tokens: int) -> int:
    """The number of requests for attention in this step, padding included.

    Args:
        num_reqs: requests in `runner.query_start_loc` and `runner.seq_lens` so far
        num_tokens: tokens of the step, padded as for the graph and over data parallel ranks
    """
    if not full_graphs_are_mixed(runner):
        return num_reqs
    has_lora = len(runner.input_batch.lora_id_to_lora_request) > 0
    mode, _ = runner.cudagraph_dispatcher.dispatch(num_tokens=num_tokens, uniform_decode=False, has_lora=has_lora)
    return _pad(runner, num_reqs, num_tokens) if mode == CUDAGraphMode.FULL else num_reqs


def padded_for_dummy(runner: "NPUModelRunner", num_reqs: int, num_tokens: int, mode: CUDAGraphMode | None) -> int:
    """The same for a dummy run, which captures a graph or replays one; `mode` is that of the run."""
    if mode != CUDAGraphMode.FULL or not full_graphs_are_mixed(runner):
        return num_reqs
    return _pad(runner, num_reqs, num_tokens)


def full_graphs_are_mixed(runner: "NPUModelRunner") -> bool:
    """Whether a full graph of this engine replays mixed batches (cudagraph_mode FULL), and so uniform ones too.

    Then none may be asked for as a uniform one: vllm's dispatcher asserts that its size is a multiple of a request's
    tokens, and a dummy run makes as many requests of them, more than there can be.
    """
    # Context parallel attention has lengths of its own (PCPManager), and other graph parameters.
    if runner.pcp_size * runner.dcp_size > 1:
        return False
    return runner.compilation_config.cudagraph_mode.mixed_mode() == CUDAGraphMode.FULL


def _pad(runner: "NPUModelRunner", num_reqs: int, num_tokens: int) -> int:
    """Appends requests up to the number that the graph of `num_tokens` is captured with, and returns that number.

    They get the tokens that are left, one each and the last one the rest, and no keys. There is always one to take
    them: with fewer tokens than the graph's there are fewer requests than its tokens, and never over max_num_reqs.
    """
    captured = min(num_tokens, runner.max_num_reqs + 1)
    if num_reqs == captured:
        return captured
    ends = runner.query_start_loc.np
    ends[num_reqs + 1 : captured + 1] = np.minimum(
        ends[num_reqs] + runner.arange_np[1 : captured + 1 - num_reqs], num_tokens
    )
    ends[captured] = num_tokens
    runner.query_start_loc.copy_to_gpu(captured + 1)
    runner.seq_lens.np[num_reqs:captured] = 0
    runner.seq_lens.copy_to_gpu(captured)
    return captured
