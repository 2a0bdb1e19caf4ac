# Copyright 2026 The patchctl contributors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Attention over packed sequences that a part of the context parallel group shares.

Which part is said by the micro-batch itself: PackedSeqParams.cp_group, and cp_overlap_group for the messages that
overlap (verl's hybrid_data_parallel sets them). Nothing is kept between calls, so it does not matter which micro-batch
was last: in a pipeline the backward pass of one runs, and with recomputation its forward pass once more, while others
are under way.
"""

import torch
import torch_npu

from mindspeed.core.context_parallel.model_parallel_utils import (
    get_ring_group_for_intra_window,
    get_ring_group_for_intra_window_send_recv_overlap,
    get_ring_ranks_for_intra_window,
)
from mindspeed.core.context_parallel.ring_context_parallel.context_parallel_kv_cache import get_cache_policy
from mindspeed.core.context_parallel.ring_context_parallel.ring_context_parallel import ringattn_context_parallel
from mindspeed.ops.fusion_attention_v2 import npu_fusion_attention


def packed_cp_group(packed_seq_params):
    """The group of the micro-batch; None where its sequences are split over the whole context parallel group."""
    return getattr(packed_seq_params, "cp_group", None)


def why_not_packed_cp_group(config):
    """What of MindSpeed's settings does not go with a group of the micro-batch, as a text; None if all do."""
    wanted = {"context_parallel_algo": "megatron_cp_algo", "attention_mask_type": "causal"}
    for name, value in wanted.items():
        if getattr(config, name, value) != value:
            return f"{name}={getattr(config, name)} (only {value} does)"
    for name in ("reset_attention_mask", "reset_position_ids", "tp_2d", "multi_head_latent_attention"):
        if getattr(config, name, False):
            return f"{name}=True"
    return None


def attention_of_packed_group(attention, query, key, value, attention_mask, sparse_mode, scale, packed_seq_params):
    """Causal attention of [tokens, heads, width]; `attention` is the module whose settings count."""
    reason = why_not_packed_cp_group(attention.config)
    if reason is not None:
        raise NotImplementedError(f"a micro-batch with a context parallel group of its own does not go with {reason}")
    if packed_cp_group(packed_seq_params).size() == 1:
        return _alone(attention, query, key, value, attention_mask, sparse_mode, scale, packed_seq_params)
    return ringattn_context_parallel(
        query,
        key,
        value,
        query.shape[1],
        ring_of_packed_group(attention, packed_seq_params),
        scale,
        attention_mask,
        attention.attention_dropout.p,
        packed_seq_params,
    )


def ring_of_packed_group(attention, packed_seq_params):
    """What ring attention wants to know of the ranks: `cp_para`."""
    config, group = attention.config, packed_cp_group(packed_seq_params)
    overlap_group = packed_seq_params.cp_overlap_group
    if bool(config.use_cp_send_recv_overlap) != (overlap_group is not None):
        raise ValueError(
            "PackedSeqParams.cp_overlap_group is for use_cp_send_recv_overlap, and has to be there with it"
        )
    ranks = torch.distributed.get_process_group_ranks(group)
    return {
        "causal": True,
        "megatron_cp_in_bnsd": config.megatron_cp_in_bnsd,
        "cp_group": group,
        "cp_size": len(ranks),
        "rank": group.rank(),
        "cp_global_ranks": ranks,
        "cp_group_for_send_recv_overlap": overlap_group,
        "pse": attention.pse,
        "pse_type": attention.pse_type,
        "cache_policy": get_cache_policy(
            attention.layer_number, config.context_parallel_kv_cache_policy, config.context_parallel_cache_interval
        ),
        **_windows(ranks),
    }


def _windows(ranks):
    """Inner and outer rings. Windows are those of the whole ring, where this one is made of more than one of them."""
    inner = list(get_ring_ranks_for_intra_window())
    size = len(inner)
    if size == 1 or len(ranks) <= size or len(ranks) % size or any(rank not in ranks for rank in inner):
        own = torch.distributed.get_rank()
        return {"cp_inner_ranks": [own], "cp_outer_ranks": ranks, "cp_dkv_outer_ranks": ranks}
    return {
        "cp_inner_ranks": inner,
        "cp_outer_ranks": ranks[ranks.index(torch.distributed.get_rank()) % size :: size],
        "cp_dkv_outer_ranks": _ring_of_gradients(ranks, size),
        "cp_group_for_intra_window": get_ring_group_for_intra_window(),
        "cp_group_for_intra_window_send_recv_overlap": get_ring_group_for_intra_window_send_recv_overlap(),
    }


def _ring_of_gradients(ranks, size):
    """As initialize_context_parallel_group_for_double_ring has it, for the rank that asks.

    Gradients of keys and values have gone one step on in a window's inner ring when they go to the next window.
    """
    windows = len(ranks) // size
    for first in range(size):
        ring, window, place = [], 0, first
        while ranks[window * size + place] not in ring:
            ring.append(ranks[window * size + place])
            window, place = (window + 1) % windows, (place + 1) % size
        if torch.distributed.get_rank() in ring:
            return ring
    raise AssertionError("every rank of the group is in one of its rings")


def _alone(attention, query, key, value, attention_mask, sparse_mode, scale, packed_seq_params):
    """One rank holds its sequences whole: no ring, as with a context parallel size of 1."""
    config = attention.config
    # Queries and keys are of the same tokens; each list is a copy from the device that waits for it.
    bounds = packed_seq_params.cu_seqlens_q_padded.tolist()
    settings = {
        "padding_mask": None,
        "atten_mask": attention_mask,
        "scale": scale,
        "keep_prob": 1 - attention.attention_dropout.p,
        "inner_precise": 0,
        "sparse_mode": sparse_mode,
        "actual_seq_qlen": bounds,
        "actual_seq_kvlen": bounds,
    }
    # The two operators spell the window in two ways.
    if config.use_fusion_attn_v2:
        settings |= {"pse": attention.pse, "pse_type": attention.pse_type}
        settings |= {"pre_tokens": config.pre_tockens, "next_tokens": config.next_tockens}
        return npu_fusion_attention(query, key, value, query.shape[1], "TND", **settings)[0]
    settings |= {"pse": None, "pre_tockens": config.pre_tockens, "next_tockens": config.next_tockens}
    return torch_npu.npu_fusion_attention(query, key, value, query.shape[1], "TND", **settings)[0]
