"""torch_npu.npu_grouped_matmul as MindSpeed's TEGroupedLinear calls it from core_r0.16.0 on: an expert's weight a tensor, and gradients of
weights by the same operator. Other calls are left to torch_npu's stand-in."""

import torch
import torch_npu
from mindspeed_ops import BY_INNER, grouped_products


def install():
    """Call it after MindSpeed's adaptor is imported, and once."""
    of_one_weight = torch_npu.npu_grouped_matmul

    def grouped_matmul(x, weight, *, group_list, group_type, group_list_type=0, bias=None, **settings):
        if group_type == BY_INNER:
            return grouped_products(x, weight, bias, group_list, group_type, group_list_type)
        stacked = [torch.stack(list(weight))] if len(weight) > 1 else weight
        told = {"group_list": group_list, "group_type": group_type, "group_list_type": group_list_type, "bias": bias}
        return of_one_weight(x, stacked, **told, **settings)

    torch_npu.npu_grouped_matmul = grouped_matmul
