"""CPU reference implementations of the NPU operators that a dense Qwen3 step calls in vllm-ascend."""

import torch

# Operators whose schemas upstream code looks up at import time; they have no implementation and fail when called.
_ASCEND = torch.library.Library("_C_ascend", "FRAGMENT")
_ASCEND.define("npu_add_rms_norm_bias(Tensor x) -> Tensor")
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
    **unused,
):
    """Causal attention in TND layout, with grouped heads, over packed keys or over a paged cache.

    `actual_seq_lengths` holds the end of each request's queries in `query`; `actual_seq_lengths_kv` holds ends in
    `key` too when there is no `block_table`, and lengths when there is one.
    """
    if input_layout != "TND":
        raise NotImplementedError(f"the stand-in has layout TND only, not {input_layout}")
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
