"""What vllm-ascend v0.23.0's expert layer asks of its operators beyond v0.14.0rc1's, whose schemas they have kept.

They compute as `torch_npu.reference_moe_ops` does; here they refuse what the operators' own checks refuse (csrc/moe/moe_gating_top_k,
csrc/moe/moe_init_routing_custom: torch adapter and tiling), with ValueError. Tested in tests/behaviour/test_experts_0_23.py.
"""

import torch
import torch_npu
from torch_npu import reference_moe_ops as older

MOST_EXPERTS = 2048  # MAX_EXPERT_COUNT of moe_gating_top_k's tiling
_ASCEND = torch.library.Library("_C_ascend", "FRAGMENT")
_ASCEND.define(
    "grouped_matmul_swiglu_quant_weight_nz(Tensor x, Tensor weight, Tensor weight_scale, Tensor x_scale, Tensor group_list, *, "
    "Tensor? bias=None, Tensor? offset=None, float swiglu_limit=0.0) -> (Tensor output, Tensor output_scale, Tensor output_offset)"
)


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
    """reference_moe_ops.gating_top_k, with the operator's checks."""
    name, experts = "moe_gating_top_k", x.shape[-1]
    _check(
        name,
        x.dim() == 2 and x.is_floating_point() and x.dtype != torch.float64,
        f"x {x.dtype} of {x.dim()} dimensions",
    )
    if bias_opt is not None:
        fits = bias_opt.dtype == x.dtype and bias_opt.shape == (experts,)
        _check(name, fits, f"bias {bias_opt.dtype} {tuple(bias_opt.shape)} for x {x.dtype} of {experts} experts")
    _check(name, experts <= MOST_EXPERTS, f"{experts} experts")
    _check(
        name,
        0 < k_group <= group_count and experts % group_count == 0,
        f"{k_group} of {group_count} groups of {experts} experts",
    )
    of_group = experts // group_count
    _check(name, group_select_mode in (0, 1) and of_group > group_select_mode, f"group_select_mode {group_select_mode}")
    _check(name, 0 < k <= k_group * of_group, f"k {k} of {k_group * of_group} experts")
    _check(name, renorm in (0, 1) and norm_type in (0, 1), f"renorm {renorm}, norm_type {norm_type}")
    settings = (k, k_group, group_count, group_select_mode, renorm, norm_type, out_flag, routed_scaling_factor, eps)
    return older.gating_top_k(x, *settings, bias_opt=bias_opt)


def init_routing(x, expert_idx, **settings):
    """reference_moe_ops.init_routing, with the operator's checks."""
    name, experts = "npu_moe_init_routing_custom", settings.get("expert_num", -1)
    rows = x.dim() == 2 and expert_idx.dim() == 2 and len(x) == len(expert_idx)
    _check(name, rows, f"x {tuple(x.shape)} and expert_idx {tuple(expert_idx.shape)}")
    first, last = settings.get("active_expert_range") or (0, experts)
    _check(name, 0 <= first < last <= experts, f"active_expert_range [{first}, {last}) of {experts} experts")
    return older.init_routing(x, expert_idx, **settings)


def swiglu_quant_weight_nz(x, weight, weight_scale, x_scale, group_list, *, bias=None, offset=None, swiglu_limit=0.0):
    """torch_npu.npu_grouped_matmul_swiglu_quant; the layout of the weights is the device's own, and none here."""
    if swiglu_limit:
        raise NotImplementedError("the stand-in has no limit for SwiGLU")
    product = torch_npu.npu_grouped_matmul_swiglu_quant(
        x=x, weight=weight, group_list=group_list, weight_scale=weight_scale, x_scale=x_scale, bias=bias, offset=offset
    )
    return *product[:2], x.new_empty(0)


def dynamic_quant(x, *, dst_type=torch.int8):
    """torch_npu.npu_dynamic_quant to int8."""
    if dst_type != torch.int8:
        raise NotImplementedError(f"the stand-in quantises to int8, not {dst_type}")
    return _older_dynamic_quant(x)


def _check(name, fits, found):
    if not fits:
        raise ValueError(f"{name}: refused: {found}")


_older_dynamic_quant = torch_npu.npu_dynamic_quant
torch_npu.npu_dynamic_quant = dynamic_quant
_ASCEND.impl("moe_gating_top_k", gating_top_k, "CPU", allow_override=True)
_ASCEND.impl("npu_moe_init_routing_custom", init_routing, "CPU", allow_override=True)
_ASCEND.impl("grouped_matmul_swiglu_quant_weight_nz", swiglu_quant_weight_nz, "CPU")
