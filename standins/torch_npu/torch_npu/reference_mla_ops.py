"""CPU reference implementations of the NPU operators of vllm-ascend's multi-head latent attention (DeepSeek).

What they compute is what torch_npu's documentation says of each: keys are a latent part, normalised, and a rotary part, whose
neighbours are turned against each other. A token's latent part and rotary part lie in two paged caches. Other cache modes, masks
and layouts raise NotImplementedError. Nothing is held to the sizes that the kernels demand.
"""

import torch

from . import graphs

FRACTAL_ND = 2
PAGED = "PA"
MASK, NO_MASK = "mask_type_triu", "no_mask"
FIRST, FURTHER = "calc_type_first_ring", "calc_type_default"
DECODE = "BNSD_NBSD"


def format_cast(tensor, memory_format):
    if memory_format != FRACTAL_ND:
        raise NotImplementedError(f"the stand-in has no memory format {memory_format}")
    return tensor


def interleave_rope(x, cos, sin):
    """x [B, N, S, D] with neighbours as pairs: first all of their first halves, then the second, turned by the angles."""
    halves = torch.cat((x[..., 0::2], x[..., 1::2]), -1)
    first, second = halves.chunk(2, -1)
    return halves * cos + torch.cat((-second, first), -1) * sin


def kv_rmsnorm_rope_cache(
    kv, gamma, cos, sin, index, k_cache, ckv_cache, *, epsilon=1e-5, cache_mode="Norm", is_output_kv=False, **unused
):
    """Writes the normalised latent part of kv [B, 1, 1, latent + rotary] into ckv_cache and the turned one into k_cache, at the
    slots in `index`; a negative slot is padding. Returns (k_cache, ckv_cache, rotary part, latent part); the last two when they
    are asked for."""
    if cache_mode != PAGED or any(value is not None for value in unused.values()):
        raise NotImplementedError(f"the stand-in has plain paged caches, not {cache_mode} with {sorted(unused)}")
    latent, rotary = kv.split([gamma.shape[0], kv.shape[-1] - gamma.shape[0]], -1)
    wide = latent.float()
    latent = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)).to(kv.dtype) * gamma
    rotary = interleave_rope(rotary, cos, sin)
    _write_pages(index, rotary, latent, k_cache, ckv_cache)
    return k_cache, ckv_cache, *((rotary, latent) if is_output_kv else (None, None))


@graphs.as_one_operator
def _write_pages(index, rotary, latent, k_cache, ckv_cache):
    used = index >= 0
    for new, cache in ((rotary, k_cache), (latent, ckv_cache)):
        cache.view(-1, cache.shape[-1])[index[used]] = new.reshape(len(index), -1)[used].to(cache.dtype)


def paged_cache_load(cache_kv_c, cache_k_pe, block_table, context_lens, *, seq_starts, key, value):
    """Copies `context_lens` tokens of each request, from seq_starts on, out of both caches, one request after another."""
    size, done = cache_kv_c.shape[1], 0
    for request, (start, length) in enumerate(zip(seq_starts.tolist(), context_lens.tolist(), strict=True)):
        positions = torch.arange(start, start + length)
        slots = block_table[request, positions // size].long() * size + positions % size
        for cache, out in ((cache_kv_c, key), (cache_k_pe, value)):
            out[done : done + length] = cache.view(-1, *cache.shape[2:])[slots]
        done += length


def ring_mla(
    *,
    q_nope,
    q_rope,
    k_nope,
    k_rope,
    value,
    seqlen,
    head_num,
    kv_head_num,
    pre_out,
    prev_lse,
    qk_scale,
    mask_type,
    calc_type,
    output,
    softmax_lse,
    input_layout="type_bsnd",
    **unused,
):
    """Attention of packed sequences into `output` [tokens, heads, width], and the log of each sum into `softmax_lse` [heads,
    tokens]. The first block of keys is the queries' own, causal; further ones are merged into what is there.

    `seqlen` int [sequences], or [2, sequences] where there are other keys than queries."""
    if (mask_type, calc_type) not in ((MASK, FIRST), (NO_MASK, FURTHER)) or kv_head_num != head_num:
        raise NotImplementedError(f"the stand-in has no {mask_type} with {calc_type} of {kv_head_num} key heads")
    queries, keys = (seqlen, seqlen) if seqlen.dim() == 1 else seqlen
    query, key = torch.cat((q_nope, q_rope), -1).float(), torch.cat((k_nope, k_rope), -1).float()
    start = key_start = 0
    for length, key_length in zip(queries.tolist(), keys.tolist(), strict=True):
        rows, columns = slice(start, start + length), slice(key_start, key_start + key_length)
        start, key_start = rows.stop, columns.stop
        if not key_length:
            continue
        scores = torch.einsum("qhd,khd->hqk", query[rows], key[columns]) * qk_scale
        if mask_type == MASK:
            scores = scores.masked_fill(torch.ones(length, key_length, dtype=torch.bool).triu(1), float("-inf"))
        found = torch.einsum("hqk,khd->qhd", scores.softmax(-1), value[columns].float())
        lse = scores.logsumexp(-1)
        if calc_type == FURTHER:
            old, new = prev_lse[:, rows], lse
            lse = torch.logaddexp(old, new)
            shares = (torch.exp(part - lse).t().unsqueeze(-1) for part in (old, new))
            found = sum(one * share for one, share in zip((pre_out[rows].float(), found), shares, strict=True))
        output[rows] = found.to(output.dtype)
        softmax_lse[:, rows] = lse


def transpose_batchmatmul(x, weight, *, perm_x1=(0, 1, 2), perm_x2=(0, 1, 2), perm_y=(0, 1, 2), **unused):
    return torch.bmm(x.permute(perm_x1), weight.permute(perm_x2)).permute(perm_y)


def latent_decode(query, key, *, query_rope, key_rope, block_table, block_size, lengths, scale):
    """Attention of one query a request, [requests, heads, 1, latent], over latent keys in pages, which are the values as well.

    Returns [heads, requests, 1, latent]. A request of length 0 is padding of a graph and gets zeros.
    """
    out = query.new_zeros(query.shape[1], query.shape[0], 1, query.shape[-1])
    for request, length in enumerate(int(one) for one in lengths):
        if length:
            blocks = block_table[request, : -(-length // block_size)].long()
            latent, rotary = (cache[blocks].reshape(-1, cache.shape[-1])[:length].float() for cache in (key, key_rope))
            scores = query[request, :, 0].float() @ latent.t() + query_rope[request, :, 0].float() @ rotary.t()
            out[:, request, 0] = ((scores * scale).softmax(-1) @ latent).to(out.dtype)
    return out
