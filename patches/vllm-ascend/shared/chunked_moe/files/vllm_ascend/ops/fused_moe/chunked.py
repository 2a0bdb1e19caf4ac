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

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import wraps
from typing import Any

import torch
from vllm.config import CUDAGraphMode, get_current_vllm_config_or_none
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.forward_context import get_forward_context
from vllm.utils.math_utils import cdiv

from vllm_ascend.ascend_config import get_moe_chunk_tokens
from vllm_ascend.ascend_forward_context import _EXTRA_CTX, MoECommType
from vllm_ascend.ops.fused_moe.moe_runtime_args import MoEFusedExpertsInput

# What of the experts' input has a row for each token; all else belongs to weights, experts or the call.
PER_TOKEN = ("hidden_states", "topk_weights", "topk_ids")
PER_TOKEN_OF_ROUTING = ("mc2_mask", "pertoken_scale")


def chunk_size() -> int:
    """moe_chunk_tokens of the engine that is being built, 0 for no chunks."""
    vllm_config = get_current_vllm_config_or_none()
    return get_moe_chunk_tokens(vllm_config) if vllm_config is not None else 0


def in_chunks(fused_experts: Callable[..., Any]) -> Callable[..., Any]:
    """Lets MoECommMethod.fused_experts take at most `self.chunk_size` tokens at a time; 0 leaves it as it is."""

    @wraps(fused_experts)
    def chunked(self: Any, fused_experts_input: MoEFusedExpertsInput) -> Any:
        if not self.chunk_size:
            return fused_experts(self, fused_experts_input)
        tokens = fused_experts_input.hidden_states.shape[:-1].numel()
        chunks = number_of_chunks(tokens, self.chunk_size)
        if chunks == 1:
            return fused_experts(self, fused_experts_input)
        results = (fused_experts(self, piece) for piece in _pieces(fused_experts_input, chunks))
        return _joined(results, fused_experts_input.hidden_states.shape)

    return chunked


def number_of_chunks(tokens: int, size: int) -> int:
    """Into how many chunks of at most `size` the `tokens` of this rank are cut: with all-to-all as many on every rank.

    A chunk of all-to-all holds collectives of the expert parallel group, so a rank with fewer tokens, or with none
    left, takes part in all of them. The number comes from the longest rank's tokens, which every rank knows from the
    step's agreement over data parallel ranks, and which tensor parallel ranks share out (PrepareAndFinalizeWithAll2All,
    sequence parallelism). After an all-gather nothing is exchanged any more until `finalize`.
    """
    if _EXTRA_CTX.capturing or get_forward_context().cudagraph_runtime_mode != CUDAGraphMode.NONE:
        return 1
    if _EXTRA_CTX.moe_comm_type == MoECommType.ALLTOALL:
        tokens = cdiv(_EXTRA_CTX.max_tokens_across_dp, get_tensor_model_parallel_world_size())
    elif _EXTRA_CTX.moe_comm_type != MoECommType.ALLGATHER:
        return 1
    return max(cdiv(tokens, size), 1)


def _pieces(given: MoEFusedExpertsInput, chunks: int) -> Iterator[MoEFusedExpertsInput]:
    """`given`, cut into that many pieces of nearly equal size, in order; some are empty where it has fewer tokens."""
    hidden_states = given.hidden_states.reshape(-1, given.hidden_states.shape[-1])
    rows = {name: getattr(given, name) for name in PER_TOKEN} | {"hidden_states": hidden_states}
    rows |= {name: of for name in PER_TOKEN_OF_ROUTING if (of := getattr(given.routing, name)) is not None}
    for name, values in rows.items():
        if len(values) != len(hidden_states):
            lengths = f"{len(values)} rows for {len(hidden_states)} tokens"
            raise ValueError(f"fused_experts: {name} has {lengths}: not cut into chunks")
    cut = {name: values.tensor_split(chunks) for name, values in rows.items()}
    for index in range(chunks):
        routing = replace(given.routing, **{name: cut[name][index] for name in PER_TOKEN_OF_ROUTING if name in cut})
        yield replace(given, routing=routing, **{name: cut[name][index] for name in PER_TOKEN})


def _joined(results: Iterator[Any], shape: torch.Size) -> Any:
    """The result for all tokens, whose hidden states have `shape`, from those of the pieces, in order.

    Counts of tokens for each expert (or their running sums) are added up. Shared experts may overlap from the first
    chunk's dispatch to the last one's combination.
    """
    out = first = last = None
    end = 0
    for result in results:
        routed = result.routed_out
        if out is None:
            # Made once its type is known (quantized tokens give other than they are), and filled chunk by chunk.
            out = routed.new_empty(shape[:-1].numel(), *routed.shape[1:])
            first = last = replace(result, routed_out=None)
        else:
            last = replace(result, routed_out=None, expert_tokens=_sum(last.expert_tokens, result.expert_tokens))
        start, end = end, end + len(routed)
        out[start:end] = routed
        del result, routed  # or a chunk's output would live while the next is computed
    return replace(last, routed_out=out.view(*shape[:-1], -1), before_dispatch_evt=first.before_dispatch_evt)


def _sum(one: torch.Tensor | None, other: torch.Tensor | None) -> torch.Tensor | None:
    return one if other is None else one + other
