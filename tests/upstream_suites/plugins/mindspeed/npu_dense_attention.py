"""Stands for the NPU's attention operators in the dense layouts (SBH, BSH, BNSD, BSND), which MindSpeed's tests use.

Packed sequences (TND) go to the stand-in npu_attention. As there, the operators are plain PyTorch in float32: per head
and query the maximum of the scores and the sum of their exponentials, eight times each, [batch, heads, queries, 8].
"""

import npu_attention
import torch
from npu_attention import LANES

CAUSAL_MODES = npu_attention.CAUSAL_MODES
ALIBI_TYPES = (2, 3)  # pse holds slopes; the distance between two tokens, or its square root


def fusion_attention(query, key, value, head_num, input_layout, *, actual_seq_qlen=None, **settings):
    """(output, softmax maximum, softmax sum, softmax, seed, offset, numels); differentiable as to the output."""
    layout = input_layout
    if layout == "TND":
        lengths = {"actual_seq_qlen": actual_seq_qlen, "actual_seq_kvlen": settings.pop("actual_seq_kvlen")}
        return npu_attention.fusion_attention(query, key, value, head_num, layout, **lengths, **settings)
    inputs = _by_heads((query, key, value), head_num, layout)
    scores = _scores(*inputs[:2], settings)
    top = scores.detach().amax(-1, keepdim=True)
    weights = torch.exp(scores - top)
    total = weights.sum(-1, keepdim=True)
    dropped = torch.nn.functional.dropout(weights / total, 1 - settings.get("keep_prob", 1.0))
    output = _like(dropped @ _for_each_head(inputs[2], head_num), layout).to(query.dtype)
    return output, _lanes(top), _lanes(total.detach()), query.new_empty(0), 0, 0, 0


def fusion_attention_grad(query, key, value, grad, head_num, layout, *, softmax_max, softmax_sum, **settings):
    """Gradients of query, key and value for these keys, from the statistics over all blocks of keys, and of pse."""
    if layout == "TND":
        statistics = {"softmax_max": softmax_max, "softmax_sum": softmax_sum}
        return npu_attention.fusion_attention_grad(query, key, value, grad, head_num, layout, **statistics, **settings)
    if settings.get("keep_prob", 1.0) != 1.0:
        raise NotImplementedError("the stand-in keeps no dropout mask for a gradient")
    settings["scale"] = settings.pop("scale_value")
    query_heads, key_heads, value_heads = _by_heads((query, key, value), head_num, layout)
    of_output, output = _by_heads((grad, settings["attention_in"]), head_num, layout)
    scores = _scores(query_heads, key_heads, settings)
    weights = torch.exp(scores - softmax_max[..., :1]) / softmax_sum[..., :1]
    of_weights = of_output @ _for_each_head(value_heads, head_num).transpose(-1, -2)
    of_scores = weights * (of_weights - (of_output * output).sum(-1, keepdim=True)) * settings["scale"]
    of_query = of_scores @ _for_each_head(key_heads, head_num)
    of_key, of_value = of_scores.transpose(-1, -2) @ query_heads, weights.transpose(-1, -2) @ of_output
    groups = key_heads.shape[1]
    of_key, of_value = (one.unflatten(1, (groups, -1)).sum(2) for one in (of_key, of_value))
    return (*(_like(one, layout).to(query.dtype) for one in (of_query, of_key, of_value)), None)


def ring_attention_update(output, maximum, total, new_output, new_maximum, new_total, bounds=None, layout="SBH"):
    """Merges what two blocks of keys gave for the same queries."""
    if layout == "TND":
        return npu_attention.ring_attention_update(
            output, maximum, total, new_output, new_maximum, new_total, bounds, layout
        )
    top = torch.maximum(maximum, new_maximum)
    old_part, new_part = total * torch.exp(maximum - top), new_total * torch.exp(new_maximum - top)
    both = old_part + new_part
    heads = maximum.shape[1]
    merged = sum(
        one * (part / both)[..., :1]
        for one, part in zip(_by_heads((output, new_output), heads, layout), (old_part, new_part), strict=True)
    )
    return _like(merged, layout).to(output.dtype), top, both


def rotary_position_embedding(x, cosine, sine, mode=0):
    """Rotates halves (mode 0) or neighbours (mode 1)."""
    if mode == 0:
        first, second = x.chunk(2, -1)
        return x * cosine + torch.cat([-second, first], -1) * sine
    return x * cosine + torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2) * sine


def _by_heads(tensors, heads, layout):
    """Each as [batch, heads, sequence, width] in float32; keys and values may have fewer heads."""
    if layout not in ("SBH", "BSH", "BNSD", "BSND"):
        raise NotImplementedError(f"the stand-in has no layout {layout}")
    if layout in ("SBH", "BSH"):
        width = tensors[0].shape[-1] // heads
        tensors = [one.unflatten(-1, (-1, width)) for one in tensors]
    order = {"SBH": (1, 2, 0, 3), "BSH": (0, 2, 1, 3), "BSND": (0, 2, 1, 3), "BNSD": (0, 1, 2, 3)}[layout]
    return [one.permute(order).float() for one in tensors]


def _like(tensor, layout):
    """[batch, heads, sequence, width] in the layout."""
    if layout == "BNSD":
        return tensor
    if layout == "SBH":
        return tensor.permute(2, 0, 1, 3).flatten(2)
    tensor = tensor.transpose(1, 2)
    return tensor if layout == "BSND" else tensor.flatten(2)


def _for_each_head(tensor, heads):
    return tensor.repeat_interleave(heads // tensor.shape[1], 1)


def _scores(query, key, settings):
    mask, mode = settings.get("atten_mask"), settings.get("sparse_mode", 0)
    if settings.get("padding_mask") is not None:
        raise NotImplementedError("the stand-in has no padding mask")
    scores = query @ _for_each_head(key, query.shape[1]).transpose(-1, -2) * settings.get("scale", 1.0)
    scores = scores + _alibi(scores.shape, settings)
    if mask is None:
        return scores
    if mode in CAUSAL_MODES:
        # The mask is 2,048 wide whatever the lengths are; mode 2 aligns it with the first key, mode 3 with the last.
        first = 1 if mode == 2 else 1 + scores.shape[-1] - scores.shape[-2]
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(first)
    elif mode not in (0, 1):
        raise NotImplementedError(f"the stand-in has no sparse mode {mode}")
    return scores.masked_fill(mask.bool(), float("-inf"))


def _alibi(shape, settings):
    """Minus the distance of two tokens times the slope of the head; nothing without pse."""
    slopes, kind = settings.get("pse"), settings.get("pse_type", 1)
    if slopes is None:
        return 0.0
    if kind not in ALIBI_TYPES:
        raise NotImplementedError(f"the stand-in has no pse of type {kind}")
    starts = [(settings.get(name) or [0])[0] for name in ("q_start_idx", "kv_start_idx")]
    rows, columns = (start + torch.arange(length) for start, length in zip(starts, shape[-2:], strict=True))
    distance = (rows[:, None] - columns[None, :]).abs().float()
    return -slopes.float().view(-1, 1, 1) * (distance if kind == ALIBI_TYPES[0] else distance.sqrt())


def _lanes(statistic):
    return statistic.expand(*statistic.shape[:-1], LANES).contiguous()


MASKS = ("pse", "padding_mask", "atten_mask")
WINDOW = ("keep_prob", "pre_tokens", "next_tokens", "inner_precise")
LENGTHS = ("prefix", "actual_seq_qlen", "actual_seq_kvlen", "sparse_mode", "gen_mask_parallel", "sync")
PLACES = ("pse_type", "q_start_idx", "kv_start_idx")


class FusionAttentionV2:
    """What MindSpeed compiles from fusion_attention_v2.cpp: the same operators, called by position."""

    FORWARD = (*MASKS, "scale", *WINDOW, *LENGTHS, *PLACES)
    STATISTICS = ("softmax_max", "softmax_sum", "softmax_in", "attention_in")
    BACKWARD = (*MASKS, *STATISTICS, "scale_value", *WINDOW, "seed", "offset", "numels", *LENGTHS, *PLACES)

    @classmethod
    def npu_fusion_attention_v2(cls, query, key, value, head_num, layout, *settings):
        return fusion_attention(query, key, value, head_num, layout, **dict(zip(cls.FORWARD, settings, strict=True)))

    @classmethod
    def npu_fusion_attention_grad_v2(cls, query, key, value, grad, head_num, layout, *settings):
        named = dict(zip(cls.BACKWARD, settings, strict=True))
        return fusion_attention_grad(query, key, value, grad, head_num, layout, **named)
