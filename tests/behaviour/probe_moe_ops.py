"""Probe: each reference operator of standins/torch_npu/reference_moe_ops.py against plain PyTorch.

Prints the largest difference of each from a loop over tokens and experts, and which unsupported calls are refused.
"""

import json

import torch
import torch_npu

TOKENS, HIDDEN, WIDTH, EXPERTS, K = 7, 8, 6, 5, 3
UNQUANTISED = -1


def routed():
    """Tokens and the experts of each; the last expert gets none."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(TOKENS, HIDDEN, generator=generator)
    ids = torch.rand(TOKENS, EXPERTS - 1, generator=generator).argsort(1)[:, :K].int()
    return x, ids, torch.rand(TOKENS, K, generator=generator)


def gate(logits, k, norm_type=0, renorm=1, groups=(1, 1), select=1, bias=None, factor=1.0):
    """Weights and ids; `groups` is (groups to choose, all groups), `select` how a group is valued."""
    arguments = {"k": k, "k_group": groups[0], "group_count": groups[1], "group_select_mode": select, "renorm": renorm}
    arguments |= {"norm_type": norm_type, "routed_scaling_factor": factor, "bias_opt": bias}
    return torch.ops._C_ascend.moe_gating_top_k(logits, out_flag=False, eps=1e-20, **arguments)[:2]


def route(x, ids, first=0, last=EXPERTS, **changes):
    arguments = {"active_num": ids.numel(), "expert_num": EXPERTS, "expert_tokens_num_type": 1}
    arguments |= {"expert_tokens_num_flag": True, "active_expert_range": [first, last], "quant_mode": UNQUANTISED}
    return torch.ops._C_ascend.npu_moe_init_routing_custom(x, ids, **arguments | changes)


def naive_moe(x, ids, weights, w13, w2, first=0):
    """The sum over each token's experts of weight * down(silu(gate(x)) * up(x)), for experts held from `first` on."""
    out = torch.zeros_like(x)
    for token in range(len(x)):
        for expert, weight in zip(ids[token].tolist(), weights[token].tolist(), strict=True):
            if not first <= expert < first + len(w13):
                continue
            gate_up = x[token] @ w13[expert - first]
            half = len(gate_up) // 2
            out[token] += weight * (
                (torch.sigmoid(gate_up[:half]) * gate_up[:half] * gate_up[half:]) @ w2[expert - first]
            )
    return out


def fused_moe(x, ids, weights, w13, w2, first=0, kind=1):
    """The same as vllm-ascend composes it: route, two grouped products with SwiGLU between, add up."""
    rows, places, counts, _ = route(x, ids, first, first + len(w13), expert_tokens_num_type=kind)
    group = {"group_list": counts, "group_list_type": kind, "group_type": 0, "split_item": 2}
    hidden = torch_npu.npu_swiglu(torch_npu.npu_grouped_matmul(x=[rows], weight=[w13], **group)[0])
    out = torch_npu.npu_grouped_matmul(x=[hidden], weight=[w2], **group)[0]
    held = (ids >= first) & (ids < first + len(w13))
    return torch_npu.npu_moe_token_unpermute(permuted_tokens=out, sorted_indices=places.abs(), probs=weights * held)


def moe_differences():
    x, ids, weights = routed()
    generator = torch.Generator().manual_seed(1)
    w13 = torch.randn(EXPERTS, HIDDEN, 2 * WIDTH, generator=generator)
    w2 = torch.randn(EXPERTS, WIDTH, HIDDEN, generator=generator)
    whole = naive_moe(x, ids, weights, w13, w2)
    halves = [fused_moe(x, ids, weights, w13[part], w2[part], part.start) for part in (slice(0, 2), slice(2, EXPERTS))]
    return {
        "counts": difference(fused_moe(x, ids, weights, w13, w2), whole),
        "running sums": difference(fused_moe(x, ids, weights, w13, w2, kind=0), whole),
        "one part": difference(halves[0], naive_moe(x, ids, weights, w13[:2], w2[:2])),
        "two parts added": difference(halves[0] + halves[1], whole),
    }


def difference(left, right):
    return (left - right).abs().max().item()


def gating_differences():
    """Against a loop over tokens that sorts Python floats."""
    generator = torch.Generator().manual_seed(2)
    logits, bias = torch.randn(TOKENS, 8, generator=generator), torch.randn(8, generator=generator)
    cases = {
        "softmax": {},
        "softmax, as they are": {"renorm": 0, "factor": 2.5},
        "sigmoid with bias": {"norm_type": 1, "bias": bias},
        "best 2 of 4 groups by their best two": {"norm_type": 1, "bias": bias, "groups": (2, 4)},
        "best 2 of 4 groups by their best": {"groups": (2, 4), "select": 0},
    }
    return {name: gating_difference(logits, **case) for name, case in cases.items()}


def gating_difference(logits, norm_type=0, renorm=1, groups=(1, 1), select=1, bias=None, factor=1.0):
    weights, ids = gate(logits, K, norm_type, renorm, groups, select, bias, factor)
    worst = 0.0
    for token, row in enumerate(logits):
        exponents = row.exp()
        scores = exponents / exponents.sum() if norm_type == 0 else 1 / (1 + (-row).exp())
        ranked = (scores if bias is None else scores + bias).tolist()
        size = len(ranked) // groups[1]
        parts = [range(start, start + size) for start in range(0, len(ranked), size)]
        parts.sort(key=lambda part: -sum(sorted((ranked[e] for e in part), reverse=True)[: 1 + (select == 1)]))
        allowed = [expert for part in parts[: groups[0]] for expert in part]
        expected = sorted(allowed, key=lambda expert: -ranked[expert])[:K]
        assert ids[token].tolist() == expected, (ids[token], expected)
        chosen = scores[expected] * factor
        if renorm or norm_type == 1:
            chosen = chosen / scores[expected].sum()
        worst = max(worst, difference(weights[token], chosen))
    return worst


def permutation():
    """Tokens come out sorted by expert; putting them back with weights is a weighted sum over their copies."""
    x, ids, weights = routed()
    rows, places = torch_npu.npu_moe_token_permute(tokens=x, indices=ids, num_out_tokens=ids.numel())
    back = torch_npu.npu_moe_token_unpermute(rows, places, probs=weights)
    order = sorted(range(ids.numel()), key=lambda copy: ids.flatten()[copy].item())
    return {
        "sorted": difference(rows, torch.stack([x[copy // K] for copy in order])),
        "back": difference(back, x * weights.sum(1, keepdim=True)),
    }


def quantised_differences():
    """Products and routing of quantised tokens and weights, against the same with what the integers stand for."""
    x, ids, _ = routed()
    quantised, scale = torch_npu.npu_dynamic_quant(x)
    rows, _, counts, scales = route(quantised, ids, scale=scale)
    plain = route(quantised.float() * scale[:, None], ids)[0]
    late, late_scales = route(x, ids, quant_mode=1)[::3]
    found = {
        "rounding, in steps": in_steps(quantised, scale, x) - 0.5,
        "routed": difference(rows * scales[:, None], plain),
        "quantised when routed": difference(late * late_scales[:, None], plain),
    }
    return found | quantised_products(rows, scales, plain, counts)


def quantised_products(rows, scales, plain, counts):
    generator = torch.Generator().manual_seed(3)
    weight = torch.randint(-127, 128, (EXPERTS, HIDDEN, 2 * WIDTH), generator=generator).to(torch.int8)
    scale = torch.rand(EXPERTS, 2 * WIDTH, generator=generator) / 100
    offset = torch.randint(-8, 8, (EXPERTS, 1, 2 * WIDTH), generator=generator).float()
    group = {"group_list": counts, "group_list_type": 1, "group_type": 0, "split_item": 2}
    scaled = {"scale": [scale], "per_token_scale": [scales], "output_dtype": torch.float32}
    product = torch_npu.npu_grouped_matmul(x=[rows], weight=[weight], **group, **scaled)[0]
    expected = by_expert(plain, counts, weight.float() * scale[:, None])
    integers = {"antiquant_scale": [scale[:, None]], "antiquant_offset": [offset]}
    of_integers = torch_npu.npu_grouped_matmul(x=[plain], weight=[weight], **group, **integers)[0]
    fused, fused_scales, _ = torch_npu.npu_grouped_matmul_swiglu_quant(
        x=rows, weight=weight, group_list=counts.cumsum(0), weight_scale=scale, x_scale=scales
    )
    hidden = torch.nn.functional.silu(expected[:, :WIDTH]) * expected[:, WIDTH:]
    return {
        "product": difference(product, expected),
        "weights of integers": difference(
            of_integers, by_expert(plain, counts, (weight.float() + offset) * scale[:, None])
        ),
        "fused, in steps": in_steps(fused, fused_scales, hidden) - 0.5,
    }


def by_expert(rows, counts, matrices):
    return torch.cat([part @ matrix for part, matrix in zip(rows.split(counts.tolist()), matrices, strict=True)])


def in_steps(quantised, scale, meant):
    """The largest distance from what is meant, in steps of the quantisation: at most a half."""
    return ((quantised * scale[:, None] - meant).abs() / scale[:, None].clamp(min=1e-12)).max().item()


def counted_integers():
    ids = torch.tensor([[0, 2], [2, 1]], dtype=torch.int32)
    return torch.histc(ids, bins=4, min=0, max=4).tolist()


def padding_is_left_out():
    """A row of weight zero that is not a number does not reach the token."""
    rows = torch.tensor([[1.0, 2.0], [float("nan")] * 2])
    out = torch_npu.npu_moe_token_unpermute(rows, torch.tensor([0, 1]), probs=torch.tensor([[2.0, 0.0]]))
    return out.tolist()


def refusals():
    x, ids, weights = routed()
    group = {"group_list": torch.tensor([TOKENS]), "group_list_type": 1, "group_type": 0, "split_item": 2}
    calls = {
        "weight in the loader's layout": lambda: torch_npu.npu_grouped_matmul(
            x=[x], weight=[torch.zeros(1, WIDTH, HIDDEN)], **group
        ),
        "scales": lambda: torch_npu.npu_grouped_matmul(
            x=[x], weight=[torch.zeros(1, HIDDEN, WIDTH)], scale=[torch.ones(1)], per_token_scale=[x[:, 0]], **group
        ),
        "static quantisation": lambda: route(x, ids, quant_mode=0),
        "capacity": lambda: route(x, ids, drop_pad_mode=1),
        "padded mode": lambda: torch_npu.npu_moe_token_unpermute(x, ids.flatten(), probs=weights, padded_mode=True),
    }
    return {name: raised(call) for name, call in calls.items()}


def raised(call):
    try:
        call()
    except (ValueError, NotImplementedError) as error:
        return type(error).__name__
    return None


print(
    json.dumps(
        {
            "moe": moe_differences(),
            "gating": gating_differences(),
            "permutation": permutation(),
            "quantised": quantised_differences(),
            "counted": counted_integers(),
            "padding": padding_is_left_out(),
            "refused": refusals(),
        }
    )
)
