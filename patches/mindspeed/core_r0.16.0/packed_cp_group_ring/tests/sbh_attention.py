"""npu_attention's operators in layout SBH as well, [tokens, sequences, heads * width], as MindSpeed calls them without packed sequences.

The statistics are [sequences, heads, tokens, 8] then. Each sequence is one of those that npu_attention computes.
"""

import npu_attention
import torch_npu

LANES = npu_attention.LANES


def install():
    """Puts both layouts into torch_npu; call it after MindSpeed's adaptor is imported."""
    npu_attention.install()
    torch_npu.npu_fusion_attention = attention
    torch_npu.npu_fusion_attention_grad = gradients


def attention(query, key, value, head_num, layout, **settings):
    if layout != "SBH":
        return npu_attention.fusion_attention(query, key, value, head_num, layout, **settings)
    tokens, sequences, _ = query.shape
    rows, ends = _packed(query, key, value, head_num)
    output, *statistics = npu_attention.fusion_attention(*rows, head_num, "TND", **settings | ends)[:3]
    statistics = [one.view(sequences, head_num, tokens, LANES) for one in statistics]
    return _unpacked(output, query), *statistics, None, 0, 0, 0


def gradients(query, key, value, grad, head_num, layout, *, attention_in, softmax_max, softmax_sum, **settings):
    settings |= {"softmax_max": softmax_max, "softmax_sum": softmax_sum}
    if layout != "SBH":
        settings |= {"attention_in": attention_in}
        return npu_attention.fusion_attention_grad(query, key, value, grad, head_num, layout, **settings)
    rows, ends = _packed(query, key, value, head_num)
    width = query.shape[-1] // head_num
    settings |= {"attention_in": _rows(attention_in, width)} | ends
    found = npu_attention.fusion_attention_grad(*rows, _rows(grad, width), head_num, "TND", **settings)
    return *(_unpacked(one, like) for one, like in zip(found, (query, key, value), strict=False)), None


def _packed(query, key, value, head_num):
    width = query.shape[-1] // head_num
    lengths = {"actual_seq_qlen": _ends(query), "actual_seq_kvlen": _ends(key)}
    return [_rows(one, width) for one in (query, key, value)], lengths


def _ends(tensor):
    tokens, sequences, _ = tensor.shape
    return [tokens * (number + 1) for number in range(sequences)]


def _rows(tensor, width):
    return tensor.transpose(0, 1).reshape(-1, tensor.shape[-1] // width, width)


def _unpacked(rows, like):
    tokens, sequences, _ = like.shape
    return rows.reshape(sequences, tokens, -1).transpose(0, 1)
