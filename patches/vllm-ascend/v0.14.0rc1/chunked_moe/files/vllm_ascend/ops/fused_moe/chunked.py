# This file is a part of the vllm-ascend project.
"""The experts' part of an MoE layer in chunks of tokens, so that its peak memory is bounded.

`MoECommMethod.fused_experts` sends each token to its experts, computes them and adds up the results. Everything between
has a row for each token and expert that a rank computes: tokens * top_k with all-gather, and up to
ranks * tokens * top_k with all-to-all, where it depends on the routing and so cannot be foreseen by a profile run.
In chunks these rows exist for one chunk at a time.

What is not chunked, and why:
- MC2 and fused MC2. They are for small batches, and their buffers have a fixed size (global_bs), whatever is sent.
- Captured graphs. They hold batches of decode, and a chunk more or less would be another graph.
- `prepare` and `finalize`, with the all-gather over data parallel ranks: they have a row for each token, not for each
  token and expert.
"""

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps
from typing import Any

import torch
from vllm.config import CUDAGraphMode, get_current_vllm_config_or_none
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.forward_context import ForwardContext, get_forward_context
from vllm.utils.math_utils import cdiv

from vllm_ascend.ascend_config import get_moe_chunk_tokens
from vllm_ascend.ascend_forward_context import MoECommType

# The arguments of fused_experts that have a row for each token; all others belong to weights, experts or the call.
PER_TOKEN = ("hidden_states", "topk_weights", "topk_ids", "mc2_mask", "pertoken_scale")


def chunk_size() -> int:
    """moe_chunk_tokens of the engine that is being built, 0 for no chunks.

    It is asked of the engine's own configuration: get_ascend_config() is that of the first engine of a process.
    """
    vllm_config = get_current_vllm_config_or_none()
    return get_moe_chunk_tokens(vllm_config) if vllm_config is not None else 0


def in_chunks(fused_experts: Callable[..., Any]) -> Callable[..., Any]:
    """Lets MoECommMethod.fused_experts take at most `self.chunk_size` tokens at a time; 0 leaves it as it is."""
    signature = inspect.signature(fused_experts)

    @wraps(fused_experts)
    def chunked(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.chunk_size:
            return fused_experts(self, *args, **kwargs)
        arguments = signature.bind(self, *args, **kwargs).arguments
        del arguments["self"]
        tokens = arguments["hidden_states"].shape[:-1].numel()
        chunks = number_of_chunks(get_forward_context(), tokens, self.chunk_size)
        if chunks == 1:
            return fused_experts(self, **arguments)
        return _computed_in(chunks, partial(fused_experts, self), arguments)

    return chunked


def number_of_chunks(context: ForwardContext, tokens: int, size: int) -> int:
    """Into how many chunks of at most `size` the `tokens` of this rank are cut: with all-to-all as many on every rank.

    A chunk of all-to-all holds collectives of the expert parallel group, so a rank with fewer tokens, or with none
    left, takes part in all of them. The number comes from the longest rank's tokens, which every rank knows from the
    step's agreement over data parallel ranks, and which tensor parallel ranks share out (PrepareAndFinalizeWithAll2All,
    sequence parallelism). After an all-gather nothing is exchanged any more until `finalize`.
    """
    if getattr(context, "capturing", False) or context.cudagraph_runtime_mode != CUDAGraphMode.NONE:
        return 1
    if context.moe_comm_type == MoECommType.ALLTOALL:
        tokens = cdiv(context.max_tokens_across_dp, get_tensor_model_parallel_world_size())
    elif context.moe_comm_type != MoECommType.ALLGATHER:
        return 1
    return max(cdiv(tokens, size), 1)


def _computed_in(chunks: int, compute: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """The result of `compute(**arguments)`, computed in that many chunks of nearly equal size, in order.

    Counts of tokens for each expert (or their running sums) are added up. Shared experts may overlap from the first
    chunk's dispatch to the last one's combination.
    """
    hidden_states = arguments["hidden_states"]
    shape = hidden_states.shape
    rows = dict(arguments, hidden_states=hidden_states.reshape(-1, shape[-1]))
    pieces = {name: _pieces(name, rows, chunks) for name in PER_TOKEN if rows.get(name) is not None}
    out = first = last = None
    end = 0
    for index in range(chunks):
        result = compute(**rows | {name: of[index] for name, of in pieces.items()})
        if out is None:
            # Made once its type is known (quantized tokens give other than they are), and filled chunk by chunk.
            out = result.routed_out.new_empty(len(rows["hidden_states"]), *result.routed_out.shape[1:])
            first = last = replace(result, routed_out=None)
        else:
            last = replace(result, routed_out=None, expert_tokens=_sum(last.expert_tokens, result.expert_tokens))
        start, end = end, end + len(result.routed_out)
        out[start:end] = result.routed_out
        del result  # or a chunk's output would live while the next is computed
    return replace(last, routed_out=out.view(*shape[:-1], -1), before_dispatch_evt=first.before_dispatch_evt)


def _pieces(name: str, rows: dict[str, Any], chunks: int) -> tuple[torch.Tensor, ...]:
    values, tokens = rows[name], len(rows["hidden_states"])
    if len(values) != tokens:
        raise ValueError(f"fused_experts: {name} has {len(values)} rows for {tokens} tokens: not cut into chunks")
    return values.tensor_split(chunks)


def _sum(one: torch.Tensor | None, other: torch.Tensor | None) -> torch.Tensor | None:
    return one if other is None else one + other
