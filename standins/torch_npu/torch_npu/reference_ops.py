"""CPU reference implementations of the NPU operators that a dense Qwen3 step calls in vllm-ascend."""

from itertools import pairwise

import torch

from . import graphs, reference_mla_ops

# Operators whose schemas upstream code looks up at import time; they have no implementation and fail when called.
_ASCEND = torch.library.Library("_C_ascend", "FRAGMENT")
_ASCEND.define("npu_add_rms_norm_bias(Tensor x) -> Tensor")
_ASCEND.define("weak_ref_tensor(Tensor(a) tensor) -> Tensor(a)")
_ASCEND.define("npu_apply_top_k_top_p(Tensor logits, Tensor? p=None, Tensor? k=None) -> Tensor")
_NPU = torch.library.Library("npu", "FRAGMENT")
_NPU.define("npu_fused_infer_attention_score(Tensor x) -> Tensor")


def reshape_and_cache(key, value, key_cache, value_cache, slot_indices):
    """Writes keys and values of new tokens into the paged cache; a negative slot is padding and is not written."""
    slots = slot_indices.to(torch.long)
    used = slots >= 0
    for new, cache in ((key, key_cache), (value, value_cache)):
        cache.view(-1, *cache.shape[2:])[slots[used]] = new[used]


def fused_infer_attention_score(
    query,
    key,
    value,
    *,
    block_table=None,
    block_size=0,
    actual_seq_lengths=None,
    actual_seq_lengths_kv=None,
    num_key_value_heads=0,
    num_heads=0,
    scale=1.0,
    input_layout="TND",
    query_rope=None,
    key_rope=None,
    **unused,
):
    """Causal attention in TND layout, with grouped heads, over packed keys or over a paged cache; or of latent attention's decoding.

    `actual_seq_lengths` holds the end of each request's queries in `query`; `actual_seq_lengths_kv` holds ends in
    `key` too when there is no `block_table`, and lengths when there is one. Raises RuntimeError where CANN 8.5.0 does.
    """
    if input_layout == reference_mla_ops.DECODE and query_rope is not None:
        pages = {"block_table": block_table, "block_size": block_size, "lengths": actual_seq_lengths_kv}
        parts = {"query_rope": query_rope, "key_rope": key_rope, "scale": scale}
        return reference_mla_ops.latent_decode(query, key, **parts, **pages), None
    if input_layout != "TND" or query_rope is not None:
        raise NotImplementedError(f"the stand-in has layout TND without rotary parts of their own, not {input_layout}")
    _check_lengths(query, key, block_table, actual_seq_lengths, actual_seq_lengths_kv)
    out = torch.zeros_like(query)
    start = key_start = 0
    for request, end in enumerate(actual_seq_lengths):
        length = int(actual_seq_lengths_kv[request])
        if block_table is None:
            keys, values = key[key_start:length], value[key_start:length]
            key_start = length
        else:
            blocks = block_table[request, : -(-length // block_size)].long()
            keys, values = (
                _paged(cache, blocks, num_key_value_heads, query.shape[-1])[:length] for cache in (key, value)
            )
        out[start:end] = _causal(query[start:end], keys, values, num_heads // num_key_value_heads, scale)
        start = end
    return out, None


def fused_infer_attention_score_out(*tensors, workspace, out, **arguments):
    """The same into `out`, which holds the result and an unused one; in a graph, a task that can be updated.

    What is wrong with lengths is found when the operator is called or updated, on the host, as on an NPU.
    """
    arguments |= dict(zip(("query", "key", "value"), tensors, strict=False))
    if arguments.get("input_layout", "TND") == "TND":
        given = {name: arguments[name] for name in ("query", "key", "block_table")}
        _check_lengths(**given, ends=arguments["actual_seq_lengths"], keys=arguments["actual_seq_lengths_kv"])

    def into(out, **arguments):
        out[0].copy_(fused_infer_attention_score(**arguments)[0].view_as(out[0]))

    graphs.run_or_update(into, {"out": out, **arguments})


def fused_infer_attention_score_workspace(*tensors, **arguments):
    """Nothing is needed to work in."""
    return torch.empty(0)


def apply_top_k_top_p(logits, p=None, k=None):
    """Minus infinity for all but the k largest logits of each row, then for those of them whose probability, added to those of all
    less likely ones, is at most 1 - p. Logits that equal the k-th stay; the likeliest always does. Ties are kept by their place."""
    values, places = logits.float().sort(-1)
    if k is not None:
        kth = values.gather(-1, (values.shape[-1] - k.long())[:, None])
        values = values.masked_fill(values < kth, float("-inf"))
    if p is not None:
        unlikely = values.softmax(-1).cumsum(-1) <= 1 - p.float()[:, None]
        unlikely[:, -1] = False
        values = values.masked_fill(unlikely, float("-inf"))
    return torch.empty_like(values).scatter_(-1, places, values).to(logits.dtype)


def _check_lengths(query, key, block_table, ends, keys):
    """What CANN's operator checks of TND lengths before it runs, with its error code (561002) in the message.

    From CANN's sources (ops-transformer, attention/fused_infer_attention_score/op_host): the last query end is the
    number of query rows, without a block table the last key end that of key rows (CheckFAISeqlenDataInTND, whose
    message vllm-ascend's issue 6524 quotes); query lengths, key lengths and rows of the block table are as many
    (CheckActualSeqLensQ, CheckActualSeqLensKv, CheckBlockTable: A5 demands it, A2 and A3 read beyond otherwise).
    """
    if query.shape[0] != ends[-1]:
        _refuse(f"queryT({query.shape[0]}) must be equal to the last element of actualSequenceLengthQ({ends[-1]})")
    if block_table is None and key.shape[0] != keys[-1]:
        _refuse(f"keyT({key.shape[0]}) must be equal to the last element of actualSequenceLengthKV({keys[-1]})")
    if len(ends) != len(keys):
        _refuse(f"{len(ends)} query lengths and {len(keys)} key lengths")
    if block_table is not None and len(block_table) != len(ends):
        _refuse(f"block table's first dimension({len(block_table)}) should be equal to batch size({len(ends)})")
    if any(end < start for start, end in pairwise(ends)):
        _refuse(f"actualSequenceLengthQ {ends} decreases")


def _refuse(what):
    raise RuntimeError(f"aclnnFusedInferAttentionScoreV3 failed, error code is 561002: when layout is TND, {what}")


def _paged(cache, blocks, heads, size):
    return cache[blocks].reshape(-1, heads, size)


def _causal(query, key, value, group, scale):
    """Attention of the last len(query) positions of a sequence to all of its len(key) positions."""
    queries, keys = query.shape[0], key.shape[0]
    if not queries or not keys:
        return torch.zeros_like(query)
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    visible = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    scores = torch.einsum("qhd,khd->hqk", query, key) * scale
    weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, value)


_ASCEND.impl("npu_apply_top_k_top_p", apply_top_k_top_p, "CPU")
# Memory is that of the tensor; a graph's own keeps it alive here.
_ASCEND.impl("weak_ref_tensor", lambda tensor: tensor.view(tensor.shape), "CPU")
fused_infer_attention_score.out = fused_infer_attention_score_out
