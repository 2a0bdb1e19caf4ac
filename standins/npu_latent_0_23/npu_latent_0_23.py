"""npu_experts_0_23 with latent attention (DeepSeek): vllm-ascend 0.23's own layers of it, on reference operators.

Its prefill calls npu_fused_infer_attention_score with rotary parts of their own, over packed keys, and merges what earlier parts of a
prompt add by npu_attention_update; its decoding calls npu_fused_infer_attention_score_v2. Cache, rotation and projection are those of
`reference_mla_ops`. Tested in tests/behaviour/test_latent_0_23.py.
"""

import npu_engine
import npu_experts_0_23
import torch
import torch_npu
from torch_npu import graphs, reference_mla_ops, reference_ops

PACKED, CAUSAL, ALL = "TND", 3, 0


def prepare(device="A3"):
    """As npu_experts_0_23.prepare, for models with latent attention."""
    npu_experts_0_23._register_customop = _register_customop
    npu_experts_0_23.prepare(device)


def packed_attention(
    query,
    key,
    value,
    *,
    query_rope,
    key_rope,
    num_heads,
    num_key_value_heads,
    scale,
    sparse_mode,
    actual_seq_lengths,
    actual_seq_lengths_kv,
    input_layout=PACKED,
    block_table=None,
    **others,
):
    """Attention of packed sequences [tokens, heads, width], whose ends are given, and the log of each sum, float32 [tokens, heads, 1].

    `sparse_mode` 3 is causal, from the last key back, and 0 lets a query see all keys of its sequence; without any it gets zeros. Raises
    ValueError for lengths that the tensors do not have, NotImplementedError for other modes.
    """
    if (
        (input_layout, block_table) != (PACKED, None)
        or sparse_mode not in (CAUSAL, ALL)
        or num_heads != num_key_value_heads
    ):
        raise NotImplementedError(
            f"the stand-in has no {input_layout} with sparse_mode {sparse_mode}, {num_key_value_heads} key heads"
        )
    if actual_seq_lengths[-1] != len(query) or actual_seq_lengths_kv[-1] != len(key):
        ends = f"{actual_seq_lengths[-1]} and {actual_seq_lengths_kv[-1]}"
        raise ValueError(f"npu_fused_infer_attention_score: {len(query)} queries and {len(key)} keys end at {ends}")
    query, key = torch.cat((query, query_rope), -1).float(), torch.cat((key, key_rope), -1).float()
    out = value.new_zeros(len(query), num_heads, value.shape[-1])
    lse = torch.full((len(query), num_heads, 1), float("-inf"))
    start = key_start = 0
    for end, key_end in zip(actual_seq_lengths, actual_seq_lengths_kv, strict=True):
        rows, columns = slice(start, end), slice(key_start, key_end)
        start, key_start = end, key_end
        if end == rows.start or key_end == columns.start:
            continue
        scores = torch.einsum("qhd,khd->hqk", query[rows], key[columns]) * scale
        if sparse_mode == CAUSAL:
            unseen = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1 + scores.shape[2] - scores.shape[1])
            scores = scores.masked_fill(unseen, float("-inf"))
        out[rows] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), value[columns].float()).to(out.dtype)
        lse[rows] = scores.logsumexp(-1).t().unsqueeze(-1)
    return out, lse


def attention(query, key, value, *, query_rope=None, **arguments):
    """npu_fused_infer_attention_score: with rotary parts that of latent attention's prefill."""
    if query_rope is None:
        return _older_attention(query=query, key=key, value=value, **arguments)
    return packed_attention(query, key, value, query_rope=query_rope, **arguments)


def decoding(
    query,
    key,
    value,
    *,
    input_layout,
    actual_seq_kvlen,
    softmax_scale,
    query_rope,
    key_rope,
    block_table,
    block_size,
    **others,
):
    """npu_fused_infer_attention_score_v2 of latent attention's decoding, a query a request."""
    if input_layout != reference_mla_ops.DECODE:
        raise NotImplementedError(f"the stand-in decodes in {reference_mla_ops.DECODE}, not {input_layout}")
    parts = {"query_rope": query_rope, "key_rope": key_rope, "block_table": block_table, "block_size": block_size}
    return reference_mla_ops.latent_decode(query, key, **parts, lengths=actual_seq_kvlen, scale=softmax_scale), None


def decoding_into(query, key, value, *, workspace, out, **arguments):
    """The same into the first of `out`; in a graph, a task that can be updated."""

    def into(out, **arguments):
        out[0].copy_(decoding(**arguments)[0])

    graphs.run_or_update(into, {"out": out, "query": query, "key": key, "value": value, **arguments})


def attention_update(lse, out, update_type):
    """Merges parts of one attention: each `lse` float32 [rows] the log of a part's sum, each `out` [rows, width] its result."""
    if update_type != 0:
        raise NotImplementedError(f"the stand-in gives no log of the merged sum (update_type {update_type})")
    shares = torch.stack(tuple(lse)).softmax(0).unsqueeze(-1)
    return (torch.stack(tuple(out)) * shares).sum(0), None


def _register_customop(vllm_config=None):
    """Experts, and for a model with latent attention its layers and the router in float32."""
    from vllm.model_executor.custom_op import CustomOp, op_registry_oot

    _experts(vllm_config)
    if vllm_config is None or not vllm_config.model_config.use_mla:
        return
    from vllm_ascend.ops import linear
    from vllm_ascend.ops.fused_moe.gate_linear import AscendGateLinear

    npu_engine._implement("unquantized_gemm", linear.unquantized_gemm)
    for name, layer in {**npu_engine._latent_layers(), "GateLinear": AscendGateLinear}.items():
        if name not in op_registry_oot:
            CustomOp.register_oot(_decorated_op_cls=layer, name=name)


_experts = npu_experts_0_23._register_customop
_older_attention = torch_npu.npu_fused_infer_attention_score
attention.out = _older_attention.out
decoding.out = decoding_into
torch_npu.npu_fused_infer_attention_score = attention
torch_npu.npu_fused_infer_attention_score_v2 = decoding
torch_npu._npu_fused_infer_attention_score_v2_get_max_workspace = reference_ops.fused_infer_attention_score_workspace
torch_npu.npu_attention_update = attention_update
