"""CPU reference implementations of the NPU operators that vllm-ascend's expert layer calls.

Schemas are those of vllm-ascend v0.14.0rc1 (csrc/torch_binding.cpp); what the operators compute is what the golden
functions of its tests/e2e/nightly/single_node/ops/singlecard_ops say, and torch_npu's documentation for the rest. Each
is checked against plain PyTorch in tests/behaviour/test_moe_standins.py. Static quantisation, dropping of tokens and
padding to a capacity are not implemented and raise NotImplementedError.
"""

import torch

from .reference_quant_ops import dequantized_product, dequantized_weight, dynamic_quant

_ASCEND = torch.library.Library("_C_ascend", "FRAGMENT")
_ASCEND.define(
    "npu_moe_init_routing_custom(Tensor x, Tensor expert_idx, *, Tensor? scale=None, Tensor? offset=None, "
    "int active_num=-1, int expert_capacity=-1, int expert_num=-1, int drop_pad_mode=0, int expert_tokens_num_type=0, "
    "bool expert_tokens_num_flag=False, int quant_mode=0, int[2] active_expert_range=[], int row_idx_type=0) "
    "-> (Tensor, Tensor, Tensor, Tensor)"
)
_ASCEND.define(
    "moe_gating_top_k(Tensor x, int k, int k_group, int group_count, int group_select_mode, int renorm, int norm_type, "
    "bool out_flag, float routed_scaling_factor, float eps, Tensor? bias_opt=None) -> (Tensor, Tensor, Tensor)"
)
UNQUANTISED = -1
DYNAMIC = 1
COUNTS = 1
SUMS = 0


def gating_top_k(
    x,
    k,
    k_group,
    group_count,
    group_select_mode,
    renorm,
    norm_type,
    out_flag,
    routed_scaling_factor,
    eps,
    bias_opt=None,
):
    """The k experts of each token: weights (tokens, k) in x's dtype, ids (tokens, k) int32, and all scores in float32.

    x: router logits (tokens, experts). `norm_type` 0 is softmax and 1 sigmoid; the bias decides which experts are
    chosen, not their weights. With groups only experts of the `k_group` best groups are chosen; a group's score is its
    maximum (`group_select_mode` 0) or the sum of its two best (1).
    """
    scores = x.float().softmax(-1) if norm_type == 0 else x.float().sigmoid()
    ranked = scores if bias_opt is None else scores + bias_opt.float()
    if group_count > 1:
        ranked = _best_groups_only(ranked, k_group, group_count, 1 if group_select_mode == 0 else 2)
    ids = ranked.sort(dim=-1, descending=True, stable=True).indices[:, :k]
    weights = scores.gather(1, ids)
    if norm_type == 1 or renorm == 1:
        weights = weights / (weights.sum(-1, keepdim=True) + eps)
    return (
        (weights * routed_scaling_factor).to(x.dtype),
        ids.to(torch.int32),
        scores if out_flag else scores.new_empty(0),
    )


def _best_groups_only(scores, k_group, group_count, best_of):
    grouped = scores.view(len(scores), group_count, -1)
    score = grouped.topk(best_of, -1).values.sum(-1)
    best = score.sort(dim=-1, descending=True, stable=True).indices[:, :k_group]
    out = torch.ones_like(score, dtype=torch.bool).scatter(1, best, False)
    return grouped.masked_fill(out.unsqueeze(-1), float("-inf")).flatten(1)


def init_routing(
    x,
    expert_idx,
    *,
    scale=None,
    offset=None,
    active_num=-1,
    expert_capacity=-1,
    expert_num=-1,
    drop_pad_mode=0,
    expert_tokens_num_type=0,
    expert_tokens_num_flag=False,
    quant_mode=0,
    active_expert_range=(),
    row_idx_type=0,
):
    """Copies each token to each of its experts in the active range, in the order of experts.

    x: (tokens, hidden); expert_idx: (tokens, k). Returns the copies (tokens * k, hidden), zero from the last copy on
    (there an NPU leaves what was in memory); for each of tokens * k the row of its copy, -1 when its expert is not in
    the range; the copies of each active expert (int64); and the scale of each copy: that of its token, when tokens
    come with scales, or that of its quantisation (`quant_mode` 1), else an empty tensor.
    """
    if quant_mode not in (UNQUANTISED, DYNAMIC) or (quant_mode == DYNAMIC and scale is not None):
        raise NotImplementedError("the stand-in routes tokens as they are, or quantises each dynamically")
    if drop_pad_mode or row_idx_type or offset is not None:
        raise NotImplementedError("the stand-in routes without dropping and padding only")
    if not expert_tokens_num_flag or expert_tokens_num_type not in (SUMS, COUNTS):
        raise NotImplementedError(
            "the stand-in gives the tokens of each expert as counts or as their running sums only"
        )
    first, last = active_expert_range or (0, expert_num)
    tokens, k = expert_idx.shape
    if active_num not in (-1, 0, tokens * k):
        raise NotImplementedError(f"the stand-in routes all tokens, not {active_num}")
    experts = expert_idx.flatten().long()
    active = (experts >= first) & (experts < last)
    order = experts.masked_fill(~active, torch.iinfo(torch.int64).max).argsort(stable=True)[: int(active.sum())]
    copies = x.new_zeros(tokens * k, x.shape[1])
    copies[: len(order)] = x[order // k]
    rows = torch.full((tokens * k,), -1, dtype=expert_idx.dtype)
    rows[order] = torch.arange(len(order), dtype=expert_idx.dtype)
    counts = torch.bincount(experts[active] - first, minlength=last - first)
    scales = x.new_empty(0, dtype=torch.float)
    if scale is not None:
        scales = scale.new_zeros(tokens * k)
        scales[: len(order)] = scale[order // k]
    if quant_mode == DYNAMIC:
        copies, scales = dynamic_quant(copies)
    return copies, rows, counts.cumsum(0) if expert_tokens_num_type == SUMS else counts, scales


def token_permute(tokens, indices, num_out_tokens=None, padded_mode=False):
    """Copies of `tokens` (tokens, hidden) in the order of `indices` (tokens, k), and for each index its copy's row."""
    k = 1 if indices.dim() == 1 else indices.shape[1]
    if padded_mode or num_out_tokens not in (None, 0, indices.numel()):
        raise NotImplementedError("the stand-in permutes all tokens, without padding")
    order = indices.flatten().argsort(stable=True)
    return tokens[order // k], order.argsort(stable=True).to(torch.int32)


def token_unpermute(permuted_tokens, sorted_indices, probs=None, padded_mode=False, restore_shape=None):
    """For each token the sum of its rows in `permuted_tokens`, weighted by `probs` (tokens, k) when given.

    A row of weight zero counts as zero whatever it holds. vllm leaves the attention output of padding tokens as the
    allocator gave it, and the token dispatcher points copies of other ranks' experts, with weight zero, at row 1,
    which may be such a token's: memory of a CPU is often not a number there, and would make all tokens so.
    """
    if padded_mode:
        raise NotImplementedError("the stand-in has no padded mode")
    rows = permuted_tokens[sorted_indices.long()]
    if probs is None:
        return rows
    weights = probs.unsqueeze(-1).to(rows.dtype)
    rows = rows.view(*probs.shape, rows.shape[-1]).masked_fill(weights == 0, 0)
    return (rows * weights).sum(1)


def grouped_matmul(
    x,
    weight,
    *,
    group_list,
    group_type,
    group_list_type=SUMS,
    split_item=0,
    output_dtype=None,
    scale=None,
    per_token_scale=None,
    antiquant_scale=None,
    antiquant_offset=None,
    **unused,
):
    """Multiplies each expert's rows of x[0] (rows, in) by its matrix in weight[0] (experts, in, out).

    `group_list` counts the rows of each expert (`group_list_type` 1) or gives their running sums (0). Rows after the
    last group are zero. int8 rows and matrices come with `scale` (experts, out) and `per_token_scale` (rows), integer
    matrices for rows of floats with `antiquant_scale` and `antiquant_offset` (experts, 1, out), each in a list of one.
    Raises ValueError when a weight does not fit, as an NPU does.
    """
    if any(value is not None for value in unused.values()):
        raise NotImplementedError(f"the stand-in multiplies without {', '.join(unused)}")
    if group_type != 0 or split_item not in (2, 3) or len(x) != 1 or len(weight) != 1:
        raise NotImplementedError("the stand-in has one input, split by rows, and one output")
    rows, matrices = x[0], weight[0]
    if matrices.dim() != 3 or matrices.shape[1] != rows.shape[1] or len(matrices) != len(group_list):
        shapes = f"rows {tuple(rows.shape)}, weight {tuple(matrices.shape)}, {len(group_list)} groups"
        raise ValueError(f"npu_grouped_matmul: {shapes} do not fit")
    ends = group_list.cumsum(0) if group_list_type == COUNTS else group_list
    out = rows.new_zeros(len(rows), matrices.shape[2], dtype=output_dtype)
    start = 0
    for expert, end in enumerate(ends.tolist()):
        part = slice(start, end)
        if scale is not None:
            out[part] = dequantized_product(rows[part], matrices[expert], scale[0][expert], per_token_scale[0][part])
        elif antiquant_scale is not None:
            matrix = dequantized_weight(matrices[expert], antiquant_scale[0][expert], antiquant_offset[0][expert])
            out[part] = rows[part].float() @ matrix
        else:
            out[part] = rows[part] @ matrices[expert]
        start = end
    return [out]


def swiglu(x, dim=-1):
    """SiLU of the first half times the second half."""
    gate, up = x.chunk(2, dim)
    return torch.nn.functional.silu(gate) * up


_ASCEND.impl("npu_moe_init_routing_custom", init_routing, "CPU")
_ASCEND.impl("moe_gating_top_k", gating_top_k, "CPU")
