"""Stands for the NPU's attention operators, as far as MindSpeed calls them for packed sequences (layout TND).

npu_fusion_attention and its gradient are written as torch_npu documents them: per head and query the maximum of the
scaled scores and the sum of their exponentials, eight times each, sequence after sequence and head after head within
one. npu_ring_attention_update merges two partial results. All are plain PyTorch in float32, a sequence at a time; they
show nothing about an NPU's speed or rounding. Dropout, bias and other layouts raise NotImplementedError.
"""

import functools
from itertools import pairwise

import torch

LANES = 8  # each statistic is stored this often
CAUSAL_MODES = (2, 3)  # left-up and right-down causal: the same for as many keys as queries, which is checked


def install():
    """Puts the operators into torch_npu and MindSpeed's ring, and maps the device "npu" to the CPU; call it after
    MindSpeed's adaptor is imported."""
    import mindspeed.core.context_parallel.utils as ring_utils
    import torch_npu

    torch_npu.npu_fusion_attention = fusion_attention
    torch_npu.npu_fusion_attention_grad = fusion_attention_grad
    ring_utils.npu_ring_attention_update = ring_attention_update
    torch.npu.current_device = lambda: "cpu"
    use_the_cpu("arange", "empty", "ones", "tensor", "zeros")


def use_the_cpu(*factories):
    """Lets these functions of torch take the device "npu" for the CPU."""
    # A barrier asks which accelerator there is, and the NPU that torch_npu's stand-in names has no driver.
    torch._C._get_accelerator = lambda *args: torch.device("cpu")
    for name in factories:
        setattr(torch, name, _on_the_cpu(getattr(torch, name)))


def _on_the_cpu(factory):
    """`factory` with the CPU in the place of the device "npu". No TorchFunctionMode: there is none in a backward pass,
    where recomputation calls it again."""

    @functools.wraps(factory)
    def made(*args, **kwargs):
        if str(kwargs.get("device", "")).startswith("npu"):
            kwargs["device"] = "cpu"
        return factory(*args, **kwargs)

    return made


def tokens_of_rank(lengths, place, ranks):
    """Which of all tokens the rank at `place` has in a ring: of every sequence the n-th chunk and the n-th from the end.

    `lengths` are multiples of 2 * ranks. Returns int64 [tokens of this rank].
    """
    found, start = [], 0
    for length in lengths:
        chunk = length // (2 * ranks)
        for first in (place, 2 * ranks - 1 - place):
            found += range(start + first * chunk, start + (first + 1) * chunk)
        start += length
    return torch.tensor(found)


def fusion_attention(
    query,
    key,
    value,
    head_num,
    input_layout,
    *,
    atten_mask=None,
    scale=1.0,
    sparse_mode=0,
    actual_seq_qlen=None,
    actual_seq_kvlen=None,
    pse=None,
    padding_mask=None,
    keep_prob=1.0,
    **unused,
):
    """(output, softmax maximum, softmax sum, ..., seed, offset, numels); differentiable as to the output.

    In layout BSND, [sequences, tokens, heads, width], there is an output alone.
    """
    if input_layout == "BSND":
        settings = {"atten_mask": atten_mask, "scale": scale, "sparse_mode": sparse_mode, "keep_prob": keep_prob}
        ends = [[len(one[0]) * (row + 1) for row in range(len(one))] for one in (query, key)]
        rows = [one.flatten(0, 1) for one in (query, key, value)]
        settings |= {"actual_seq_qlen": ends[0], "actual_seq_kvlen": ends[1], "pse": pse, "padding_mask": padding_mask}
        return (fusion_attention(*rows, head_num, "TND", **settings)[0].view(*query.shape[:-1], -1),)
    _check(input_layout, pse, padding_mask, keep_prob)
    sequences = list(_sequences(actual_seq_qlen, actual_seq_kvlen))
    output = value.new_zeros(*query.shape[:-1], value.shape[-1])  # latent attention's values are narrower
    maxima, sums = [None] * len(sequences), [None] * len(sequences)
    for numbers, queries, keys in _of_equal_lengths(sequences):
        scores = _scores(query[queries], key[keys], scale, atten_mask, sparse_mode)
        top = scores.detach().amax(-1)
        weights = torch.exp(scores - top[..., None])
        total = weights.sum(-1)
        output = output.index_put((queries,), _heads_last(weights / total[..., None], value[keys]).to(query.dtype))
        for place, number in enumerate(numbers):
            maxima[number], sums[number] = top[place].flatten(), total[place].detach().flatten()
    return output, _lanes(maxima, query), _lanes(sums, query), None, 0, 0, 0


def fusion_attention_grad(
    query,
    key,
    value,
    grad,
    head_num,
    layout,
    *,
    atten_mask=None,
    softmax_max,
    softmax_sum,
    attention_in,
    scale_value=1.0,
    sparse_mode=0,
    actual_seq_qlen,
    actual_seq_kvlen,
    pse=None,
    padding_mask=None,
    keep_prob=1.0,
    **unused,
):
    """Gradients of query, key and value for this block of keys, from the statistics over all blocks."""
    _check(layout, pse, padding_mask, keep_prob)
    results = [torch.zeros_like(tensor, dtype=torch.float32) for tensor in (query, key, value)]
    maxima, sums = (tensor.reshape(-1, LANES)[:, 0] for tensor in (softmax_max, softmax_sum))
    heads, done = query.shape[1], 0
    for queries, keys in _sequences(actual_seq_qlen, actual_seq_kvlen):
        scores = _scores(query[queries], key[keys], scale_value, atten_mask, sparse_mode)
        rows = slice(done, done + heads * scores.shape[1])
        done = rows.stop
        top, total = (tensor[rows].view(heads, -1, 1) for tensor in (maxima, sums))
        weights = torch.exp(scores - top) / total
        _add_gradients(results, weights, queries, keys, (query, key, value), grad, attention_in, scale_value)
    return (*(result.to(query.dtype) for result in results), None)


def _add_gradients(results, weights, queries, keys, inputs, grad, output, scale):
    query, key, value = (tensor.float() for tensor in inputs)
    repeats = query.shape[1] // key.shape[1]
    grad, output = grad[queries].float(), output[queries].float()
    of_weights = torch.einsum("qhd,khd->hqk", grad, value[keys].repeat_interleave(repeats, 1))
    of_scores = weights * (of_weights - torch.einsum("qhd,qhd->hq", grad, output)[..., None]) * scale
    results[0][queries] += torch.einsum("hqk,khd->qhd", of_scores, key[keys].repeat_interleave(repeats, 1))
    for result, rows, other in ((results[1], of_scores, query[queries]), (results[2], weights, grad)):
        found = torch.einsum("hqk,qhd->khd", rows, other)
        result[keys] += found.view(len(found), -1, repeats, found.shape[-1]).sum(2)


def ring_attention_update(output, maximum, total, new_output, new_maximum, new_total, bounds, layout):
    """Merges what two blocks of keys gave for the same queries; `bounds` are those of the sequences, 0 first."""
    if layout != "TND":
        raise NotImplementedError(f"the stand-in merges packed sequences only, not {layout}")
    heads, dtype = output.shape[1], output.dtype
    lengths = [end - start for start, end in pairwise(bounds.tolist())]
    old_max, old_sum, new_max, new_sum = (
        _by_token(tensor, lengths, heads) for tensor in (maximum, total, new_maximum, new_total)
    )
    top = torch.maximum(old_max, new_max)
    old_part, new_part = old_sum * torch.exp(old_max - top), new_sum * torch.exp(new_max - top)
    both = old_part + new_part
    merged = output.float() * (old_part / both)[..., None] + new_output.float() * (new_part / both)[..., None]
    return merged.to(dtype), _by_head(top, lengths, output), _by_head(both, lengths, output)


def _check(layout, pse, padding_mask, keep_prob):
    if layout != "TND" or pse is not None or padding_mask is not None or keep_prob != 1.0:
        raise NotImplementedError("the stand-in knows packed sequences (TND) without bias, padding mask and dropout")


def _sequences(query_ends, key_ends):
    starts = [(0, 0), *zip(query_ends, key_ends, strict=True)]
    for (query, key), (next_query, next_key) in pairwise(starts):
        if next_query > query:
            yield slice(query, next_query), slice(key, next_key)


def _of_equal_lengths(sequences):
    """(numbers of the sequences, rows of their queries, of their keys) of those that have as many of each: hundreds of short
    ones are one product, and not hundreds. The rows are int64 [sequences, length]."""
    groups = {}
    for number, (queries, keys) in enumerate(sequences):
        groups.setdefault((queries.stop - queries.start, keys.stop - keys.start), []).append(number)
    for lengths, numbers in groups.items():
        places = ([sequences[number][side].start for number in numbers] for side in (0, 1))
        yield numbers, *(torch.tensor(p)[:, None] + torch.arange(n) for p, n in zip(places, lengths, strict=True))


def _scores(query, key, scale, mask, mode):
    """[..., heads, queries, keys] in float32, of [..., tokens, heads, width]."""
    key = key.float().repeat_interleave(query.shape[-2] // key.shape[-2], -2)
    scores = torch.einsum("...qhd,...khd->...hqk", query.float(), key) * scale
    if mask is None and mode == 0:
        return scores
    queries, keys = scores.shape[-2:]
    if mode not in CAUSAL_MODES or mask is None or queries != keys:
        raise NotImplementedError(f"sparse mode {mode} for {queries} queries and {keys} keys")
    later = torch.ones(queries, keys, dtype=torch.bool).triu(1)
    return scores.masked_fill(later, float("-inf"))


def _heads_last(weights, value):
    value = value.float().repeat_interleave(weights.shape[-3] // value.shape[-2], -2)
    return torch.einsum("...hqk,...khd->...qhd", weights, value)


def _lanes(parts, query):
    return torch.cat(parts)[:, None].repeat(1, LANES).view(len(query), query.shape[1], LANES)


def _by_token(statistic, lengths, heads):
    """[tokens, heads] of what is stored sequence after sequence, head after head."""
    parts = statistic.reshape(-1, LANES)[:, 0].split([length * heads for length in lengths])
    return torch.cat([part.view(heads, -1).t() for part in parts])


def _by_head(statistic, lengths, output):
    return _lanes([part.t().flatten() for part in statistic.split(lengths)], output)
