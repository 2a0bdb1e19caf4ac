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
"""Attention of a micro-batch that brings its context parallel ranks.

PackedSeqParams says which: cp_group, or local_cp_size=1 without a group, as Megatron-LM's scheduler of hybrid context
parallelism has it. Nothing is kept between calls: the backward pass of one micro-batch runs, and with recomputation its
forward pass once more, while others are under way.
"""

import torch
import torch_npu
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.enums import AttnMaskType

from mindspeed.core.context_parallel.ring_context_parallel.context_parallel_kv_cache import get_cache_policy
from mindspeed.core.context_parallel.ring_context_parallel.ring_context_parallel import ringattn_context_parallel
from mindspeed.ops.fusion_attention_v2 import npu_fusion_attention

WANTED = {"context_parallel_algo": "megatron_cp_algo", "attention_mask_type": "causal", "cp_window_size": 1}
UNWANTED = ("reset_attention_mask", "tp_2d", "multi_latent_attention", "multi_head_latent_attention")


def brings_ranks(packed_seq_params):
    """Whether the micro-batch says which ranks share its sequences; otherwise all of the group do."""
    return any(getattr(packed_seq_params, name, None) is not None for name in ("cp_group", "local_cp_size"))


def attention_of_packed_group(attention, query, key, value, attention_mask, attn_mask_type, packed_seq_params):
    """Causal self-attention on the ranks that the micro-batch brings; `attention` is the module whose settings count.

    query, key and value are [s, b, heads, width] where qkv_format is "sbhd", else [tokens, heads, width]: of each
    sequence the n-th of 2 r chunks and the n-th from the end, for the n-th of r ranks. Returns [s, b, heads * width],
    or [tokens, heads, width], of query's dtype. Raises NotImplementedError for a setting that does not go with it, and
    ValueError for ranks that are not said.
    """
    config = attention.config
    sbhd = packed_seq_params.qkv_format == "sbhd"
    ranks = _ranks(packed_seq_params)
    _refuse(config, attn_mask_type, fused_rotary=not sbhd and len(ranks) > 1)
    heads, bounds = query.shape[-2], None
    if sbhd:
        query, key, value = (tensor.flatten(2) for tensor in (query, key, value))
    else:
        bounds = packed_seq_params.cu_seqlens_q_padded
        bounds = packed_seq_params.cu_seqlens_q if bounds is None else bounds
    if len(ranks) == 1:
        return _alone(attention, query, key, value, heads, attention_mask, bounds)
    ring = {
        "causal": True,
        "megatron_cp_in_bnsd": config.megatron_cp_in_bnsd,
        "cp_group": packed_seq_params.cp_group,
        "cp_size": len(ranks),
        "rank": packed_seq_params.cp_group.rank(),
        "cp_global_ranks": ranks,
        "cp_group_for_send_recv_overlap": _second_group(config, packed_seq_params),
        "pse": attention.pse,
        "pse_type": attention.pse_type,
        "cache_policy": get_cache_policy(
            attention.layer_number, config.context_parallel_kv_cache_policy, config.context_parallel_cache_interval
        ),
    }
    # The ring divides the padded bounds by its size, and writes what it derives into what it is given.
    packed = None if sbhd else PackedSeqParams(cu_seqlens_q_padded=bounds)
    scale, dropout = attention.softmax_scale, attention.attention_dropout.p
    return ringattn_context_parallel(query, key, value, heads, ring, scale, attention_mask, dropout, packed)


def _ranks(packed_seq_params):
    group, size = packed_seq_params.cp_group, packed_seq_params.local_cp_size
    if group is None:
        if size != 1:
            raise ValueError(f"PackedSeqParams.local_cp_size={size} without cp_group: only 1 goes without a group")
        return [torch.distributed.get_rank()]
    ranks = torch.distributed.get_process_group_ranks(group)
    if size is not None and size != len(ranks):
        raise ValueError(f"PackedSeqParams.local_cp_size={size}, and cp_group has {len(ranks)} ranks")
    return ranks


def _refuse(config, attn_mask_type, fused_rotary):
    reasons = [
        f"{name}={found} (only {value} does)"
        for name, value in WANTED.items()
        if (found := getattr(config, name, value)) != value
    ]
    # The fused rotary operator for packed sequences knows no ranks.
    unwanted = (*UNWANTED, "apply_rope_fusion") if fused_rotary else UNWANTED
    reasons += [f"{name}=True" for name in unwanted if getattr(config, name, False)]
    if attn_mask_type == AttnMaskType.no_mask:
        reasons.append("attn_mask_type=no_mask")
    if reasons:
        raise NotImplementedError(
            f"a micro-batch with context parallel ranks of its own does not go with {', '.join(reasons)}"
        )


def _second_group(config, packed_seq_params):
    if not config.use_cp_send_recv_overlap:
        return None
    group = getattr(packed_seq_params, "cp_overlap_group", None)
    if group is None:
        raise NotImplementedError(
            "use_cp_send_recv_overlap=True wants a second group of the ranks that the micro-batch brings, as "
            "PackedSeqParams.cp_overlap_group; Megatron-LM makes none"
        )
    return group


def _alone(attention, query, key, value, heads, attention_mask, bounds):
    """One rank holds its sequences whole: no ring, as with a context parallel size of 1."""
    config = attention.config
    lengths = None if bounds is None else bounds.tolist()
    layout = "SBH" if bounds is None else "TND"
    settings = {
        "padding_mask": None,
        "atten_mask": attention_mask,
        "scale": attention.softmax_scale,
        "keep_prob": 1 - attention.attention_dropout.p,
        "inner_precise": 0,
        "sparse_mode": config.sparse_mode,
        "actual_seq_qlen": lengths,
        "actual_seq_kvlen": lengths,
    }
    # The two operators spell the window in two ways.
    if config.use_fusion_attn_v2:
        settings |= {"pse": attention.pse, "pse_type": attention.pse_type}
        settings |= {"pre_tokens": config.pre_tockens, "next_tokens": config.next_tockens}
        return npu_fusion_attention(query, key, value, heads, layout, **settings)[0]
    settings |= {"pse": None, "pre_tockens": config.pre_tockens, "next_tockens": config.next_tockens}
    return torch_npu.npu_fusion_attention(query, key, value, heads, layout, **settings)[0]
