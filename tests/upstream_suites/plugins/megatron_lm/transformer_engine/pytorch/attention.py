"""Attention and rotary embedding of Transformer Engine, for one rank of context parallelism."""

from contextlib import nullcontext
from itertools import pairwise

import torch

# TE's unfused attention fills what is masked with this, so that a row without any key stays finite.
MASKED = -10000.0


class DotProductAttention(torch.nn.Module):
    """Softmax attention over `sbhd`, `bshd` or packed (`thd`) tensors; the last two dimensions come out as one."""

    def __init__(
        self,
        num_attention_heads,
        kv_channels,
        num_gqa_groups=None,
        attention_dropout=0.0,
        qkv_format="sbhd",
        attn_mask_type="causal",
        window_size=None,
        get_rng_state_tracker=None,
        softmax_scale=None,
        cp_group=None,
        **unused,
    ):
        super().__init__()
        if window_size is not None:
            raise NotImplementedError("the stand-in for Transformer Engine has no sliding window")
        width = kv_channels[0] if isinstance(kv_channels, tuple) else kv_channels
        self.qkv_format, self.attn_mask_type = qkv_format, attn_mask_type
        self.softmax_scale = width**-0.5 if softmax_scale is None else softmax_scale
        self.attention_dropout = attention_dropout
        self.get_rng_state_tracker = get_rng_state_tracker
        self.cp_group = cp_group

    def forward(
        self,
        query_layer,
        key_layer,
        value_layer,
        attention_mask=None,
        qkv_format=None,
        cu_seqlens_q=None,
        cu_seqlens_kv=None,
        cu_seqlens_q_padded=None,
        cu_seqlens_kv_padded=None,
        max_seqlen_q=None,
        max_seqlen_kv=None,
        attn_mask_type=None,
        core_attention_bias_type="no_bias",
        core_attention_bias=None,
    ):
        if self.cp_group is not None:
            raise NotImplementedError("the stand-in for Transformer Engine computes on one context parallel rank")
        layout, mask_type = qkv_format or self.qkv_format, attn_mask_type or self.attn_mask_type
        tensors = (query_layer, key_layer, value_layer)
        if layout == "thd":
            starts = [cu_seqlens_q if cu_seqlens_q_padded is None else cu_seqlens_q_padded]
            starts.append(cu_seqlens_kv if cu_seqlens_kv_padded is None else cu_seqlens_kv_padded)
            return self._packed(tensors, (cu_seqlens_q, cu_seqlens_kv), starts, "causal" in mask_type)
        order = (1, 2, 0, 3) if layout == "sbhd" else (0, 2, 1, 3)
        mask = attention_mask if "padding" in mask_type or mask_type == "arbitrary" else None
        heads = [tensor.permute(order) for tensor in tensors]
        out = self._attend(heads, mask, "causal" in mask_type, core_attention_bias)
        # Back from [batch, heads, sequence, width].
        out = out.permute(2, 0, 1, 3) if layout == "sbhd" else out.permute(0, 2, 1, 3)
        return out.reshape(*out.shape[:2], -1)

    def _packed(self, tensors, bounds, starts, causal):
        """Each sequence by itself; what lies between the end of one and the padded start of the next stays zero."""
        query, key, value = tensors
        out = query.new_zeros(query.shape[0], query.shape[1], value.shape[-1])
        lengths = [[after - before for before, after in pairwise(one.tolist())] for one in bounds]
        for number, (queries, keys) in enumerate(zip(*lengths, strict=True)):
            first, first_key = (int(one[number]) for one in starts)
            own = [query[first : first + queries], *(one[first_key : first_key + keys] for one in (key, value))]
            heads = [one.transpose(0, 1)[None] for one in own]
            out[first : first + queries] = self._attend(heads, None, causal, None)[0].transpose(0, 1)
        return out.flatten(1)

    def _attend(self, heads, mask, causal, bias):
        query, key, value = heads
        key, value = (one.repeat_interleave(query.shape[1] // one.shape[1], 1) for one in (key, value))
        scores = query.float() @ key.float().transpose(-1, -2) * self.softmax_scale
        if bias is not None:
            scores = scores + bias
        if causal:
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(scores.shape[-1] - scores.shape[-2] + 1)
            scores = scores.masked_fill(hidden, MASKED)
        if mask is not None:
            scores = scores.masked_fill(mask[0] if isinstance(mask, tuple) else mask, MASKED)
        weights = scores.softmax(-1).to(value.dtype)
        with self.get_rng_state_tracker().fork() if self.get_rng_state_tracker else nullcontext():
            weights = torch.nn.functional.dropout(weights, self.attention_dropout, self.training)
        return weights @ value


def apply_rotary_pos_emb(
    t, freqs, tensor_format="sbhd", interleaved=False, fused=False, cu_seqlens=None, cp_size=1, cp_rank=0
):
    """Rotates the first `freqs.shape[-1]` channels of each head; positions of a packed sequence start at 0."""
    if interleaved:
        raise NotImplementedError("Transformer Engine 1.13 rotates halves only")
    if tensor_format == "thd":
        return _packed_rotary(t, freqs, cu_seqlens, cp_size, cp_rank)
    if tensor_format == "bshd":
        return _rotated(t.transpose(0, 1), freqs[: t.shape[1]]).transpose(0, 1)
    return _rotated(t, freqs[: t.shape[0]])


def _packed_rotary(t, freqs, cu_seqlens, cp_size, cp_rank):
    parts = []
    for before, after in pairwise((cu_seqlens // cp_size).tolist()):
        length = after - before
        own = freqs[:length]
        if cp_size > 1:  # of every sequence a rank has the n-th chunk and the n-th from the end
            half = length // 2
            last = length * cp_size - half * cp_rank
            own = torch.cat([freqs[half * cp_rank : half * (cp_rank + 1)], freqs[last - half : last]])
        parts.append(_rotated(t[before:after][:, None], own)[:, 0])
    return torch.cat(parts)


def _rotated(t, freqs):
    width = freqs.shape[-1]
    turned, kept = t[..., :width], t[..., width:]
    first, second = turned.chunk(2, -1)
    cosine, sine = freqs.cos().to(t.dtype), freqs.sin().to(t.dtype)
    return torch.cat([turned * cosine + torch.cat([-second, first], -1) * sine, kept], -1)
