"""Probe: the stand-ins' operators of latent attention beside plain PyTorch: the largest difference of each."""

import json

import torch
import torch_npu
from torch.nn.functional import scaled_dot_product_attention

HEADS, NOPE, ROPE, VALUE, LATENT, BLOCK = 3, 6, 4, 5, 7, 4
RANDOM = torch.Generator().manual_seed(0)


def random(*size):
    return torch.randn(size, generator=RANDOM)


def turned(x, angles):
    """Neighbours as complex numbers, turned by `angles` [tokens, ROPE / 2]; their real parts first."""
    numbers = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
    numbers = numbers * torch.polar(torch.ones_like(angles), angles)[:, None, None, :]
    return torch.cat((numbers.real, numbers.imag), -1)


def far(one, other):
    return (one - other).abs().max().item()


def angles_of(tokens):
    angles = random(tokens, ROPE // 2)
    wide = torch.cat((angles, angles), -1)[:, None, None, :]
    return angles, wide.cos(), wide.sin()


def cache():
    """Five tokens, one of which is padding, into pages; what a page held elsewhere stays."""
    kv, gamma = random(5, 1, 1, LATENT + ROPE), random(LATENT)
    angles, cos, sin = angles_of(5)
    pages = [random(3, BLOCK, 1, width) for width in (ROPE, LATENT)]
    before = [page.clone() for page in pages]
    slots = torch.tensor([5, 0, -1, 11, 6])
    out = torch_npu.npu_kv_rmsnorm_rope_cache(
        kv, gamma, cos, sin, slots, *pages, epsilon=1e-6, cache_mode="PA", is_output_kv=True
    )
    latent = torch.nn.functional.rms_norm(kv[..., :LATENT], (LATENT,), gamma, 1e-6)
    rotary = turned(kv[..., LATENT:], angles)
    expected = [page.view(-1, page.shape[-1]) for page in before]
    for token in (0, 1, 3, 4):
        expected[0][slots[token]], expected[1][slots[token]] = rotary[token, 0, 0], latent[token, 0, 0]
    written = [far(page.view(-1, page.shape[-1]), want) for page, want in zip(pages, expected, strict=True)]
    return {
        "rotary pages": written[0],
        "latent pages": written[1],
        "latent": far(out[3], latent),
        "rotary": far(out[2], rotary),
    }


def interleaved():
    x = random(5, HEADS, 1, ROPE)
    angles, cos, sin = angles_of(5)
    return {"turned": far(torch_npu.npu_interleave_rope(x, cos, sin), turned(x, angles))}


def decode():
    """Two requests and one of padding, over pages that lie in another order."""
    pages, rotary = random(6, 1, BLOCK, LATENT), random(6, 1, BLOCK, ROPE)
    query, query_rope = random(3, HEADS, 1, LATENT), random(3, HEADS, 1, ROPE)
    table, lengths = torch.tensor([[4, 1], [2, 0], [0, 0]]), [7, 3, 0]
    out, _ = torch_npu.npu_fused_infer_attention_score(
        query,
        pages,
        pages,
        query_rope=query_rope,
        key_rope=rotary,
        num_heads=HEADS,
        num_key_value_heads=1,
        input_layout="BNSD_NBSD",
        scale=0.3,
        block_table=table,
        block_size=BLOCK,
        actual_seq_lengths_kv=lengths,
    )
    differences = {"padding": out[:, 2].abs().max().item()}
    for request, length in enumerate(lengths[:2]):
        held = [torch.cat([one[block, 0] for block in table[request]])[:length] for one in (pages, rotary)]
        key = torch.cat(held, -1).expand(HEADS, -1, -1)
        asked = torch.cat((query[request], query_rope[request]), -1)
        want = scaled_dot_product_attention(asked, key, held[0].expand(HEADS, -1, -1), scale=0.3)
        differences[f"request {request}"] = far(out[:, request], want)
    return differences


def prefill():
    """Two sequences whose first tokens lie in pages already: causal over their own keys, then merged with the pages'."""
    lengths, held = torch.tensor([3, 2]), torch.tensor([5, 0])
    own = [random(5, HEADS, width) for width in (NOPE, ROPE, NOPE, ROPE, VALUE)]
    earlier = [random(5, HEADS, width) for width in (NOPE, ROPE, VALUE)]
    out, lse = torch.empty(5, HEADS, VALUE), torch.empty(HEADS, 5)
    settings = {
        "mask": None,
        "head_num": HEADS,
        "kv_head_num": HEADS,
        "qk_scale": 0.3,
        "output": out,
        "softmax_lse": lse,
    }
    names = ("q_nope", "q_rope", "k_nope", "k_rope", "value")
    first = {"mask_type": "mask_type_triu", "calc_type": "calc_type_first_ring", "pre_out": None, "prev_lse": None}
    torch_npu.atb.npu_ring_mla(**dict(zip(names, own, strict=True)), seqlen=lengths, **settings, **first)
    further = {"mask_type": "no_mask", "calc_type": "calc_type_default", "pre_out": out, "prev_lse": lse}
    pairs = dict(zip(names, [*own[:2], *earlier], strict=True))
    torch_npu.atb.npu_ring_mla(**pairs, seqlen=torch.stack([lengths, held]), **settings, **further)
    query, key = torch.cat(own[:2], -1), torch.cat(own[2:4], -1)
    keys, values = torch.cat((torch.cat(earlier[:2], -1), key[:3])), torch.cat((earlier[2], own[4][:3]))
    visible = torch.ones(3, 8, dtype=torch.bool).tril(5)
    expected = [
        attended(query[:3], keys, values, visible),
        attended(query[3:], key[3:], own[4][3:], torch.ones(2, 2).tril().bool()),
    ]
    return {"first": far(out[:3], expected[0]), "second": far(out[3:], expected[1])}


def attended(query, key, value, visible):
    parts = (one.transpose(0, 1) for one in (query, key, value))
    return scaled_dot_product_attention(*parts, visible, scale=0.3).transpose(0, 1)


def loaded():
    latent, rotary = random(4, BLOCK, 1, LATENT), random(4, BLOCK, 1, ROPE)
    table = torch.tensor([[3, 1], [0, 2]])
    out = [torch.empty(6, 1, width) for width in (LATENT, ROPE)]
    torch_npu.atb.npu_paged_cache_load(
        latent, rotary, table, torch.tensor([4, 2]), seq_starts=torch.tensor([2, 5]), key=out[0], value=out[1]
    )
    places = [(3, 2), (3, 3), (1, 0), (1, 1), (2, 1), (2, 2)]
    want = [torch.stack([cache[place] for place in places]) for cache in (latent, rotary)]
    return {name: far(*pair) for name, pair in zip(("latent", "rotary"), zip(out, want, strict=True), strict=True)}


def product():
    x, weight = random(HEADS, 5, LATENT), random(HEADS, LATENT, VALUE)
    found = torch_npu.npu_transpose_batchmatmul(x, weight, perm_y=(1, 0, 2))
    return {"product": far(found, torch.einsum("nbl,nlv->bnv", x, weight))}


def refused():
    def raised(call):
        try:
            call()
        except NotImplementedError:
            return True
        return False

    kv, gamma = torch.zeros(1, 1, 1, LATENT + ROPE), torch.ones(LATENT)
    rest = [
        kv,
        gamma,
        *(torch.zeros(1, 1, 1, ROPE),) * 2,
        torch.zeros(1).long(),
        *(torch.zeros(1, BLOCK, 1, ROPE),) * 2,
    ]
    query = torch.zeros(1, HEADS, 1, LATENT)
    return {
        "cache in NZ": raised(lambda: torch_npu.npu_kv_rmsnorm_rope_cache(*rest, cache_mode="PA_NZ")),
        "weight in NZ": raised(lambda: torch_npu.npu_format_cast(query, 29)),
        "layout": raised(
            lambda: torch_npu.npu_fused_infer_attention_score(
                query, query, query, query_rope=query, key_rope=query, input_layout="TND_NTD"
            )
        ),
    }


kinds = {name: globals()[name]() for name in ("cache", "interleaved", "decode", "prefill", "loaded", "product")}
print(json.dumps(kinds | {"refused": refused()}))
