"""Stands for MindSpeed's own operators, C++ over CANN that its op_builder compiles: the same in plain PyTorch.

`install` puts them where the builder keeps what it has compiled, so that MindSpeed's own functions call them. What they
compute is what csrc/cann says; they show nothing about an NPU's speed or rounding.
"""

import types

import torch

CUMULATED = 0
BY_ROWS, BY_INNER = 0, 2
ROTATE_HALF = 0


def install():
    """Call it after MindSpeed's adaptor is imported. Operators that are not here are still compiled, and fail."""
    from mindspeed.op_builder.builder import AS_LIBRARY, MindSpeedOpBuilder
    from mindspeed.ops import gmm

    products = types.SimpleNamespace(
        npu_gmm=grouped_products, npu_gmm_backward=grouped_gradients, npu_gmm_backward_fusion=grouped_input_gradients
    )
    MindSpeedOpBuilder._loaded_ops.update(
        grouped_matmul=products,
        grouped_matmul_v2=products,
        npu_groupmatmul_add_fp32=types.SimpleNamespace(npu_groupmatmul_add_fp32=add_weight_gradients),
        npu_apply_fused_adamw_v2=types.SimpleNamespace(npu_apply_fused_adamw_v2=fused_adamw),
        npu_rotary_position_embedding=types.SimpleNamespace(npu_rotary_position_embedding=rotary_embedding),
    )
    if not torch._C._dispatch_has_kernel_for_dispatch_key("mindspeed::npu_gmm.List", "CPU"):
        # MindSpeed registers them for its device only.
        AS_LIBRARY.impl("npu_gmm.List", gmm._npu_gmm, "CPU")
        AS_LIBRARY.impl("npu_gmm.Tensor", gmm._npu_gmm, "CPU")
        AS_LIBRARY.impl("npu_gmm_v2.Tensor", gmm._npu_gmm_v2, "CPU")


def fused_adamw(
    param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq, step, lr, beta1, beta2, weight_decay, eps, amsgrad, maximize
):
    """AdamW in place; `step` counts from one."""
    grad, count = -grad if maximize else grad, int(step)
    param.mul_(1 - lr * weight_decay)
    exp_avg.lerp_(grad, 1 - beta1)
    exp_avg_sq.lerp_(grad.square(), 1 - beta2)
    second = torch.maximum(max_exp_avg_sq, exp_avg_sq, out=max_exp_avg_sq) if amsgrad else exp_avg_sq
    denominator = (second / (1 - beta2**count)).sqrt_().add_(eps)
    param.addcdiv_(exp_avg, denominator, value=-lr / (1 - beta1**count))


def rotary_embedding(x, cos, sin, mode=ROTATE_HALF):
    """x * cos + rotated x * sin; rotated are the halves of the last dimension, or in mode 1 each pair of neighbours."""
    if mode == ROTATE_HALF:
        first, second = x.chunk(2, -1)
        rotated = torch.cat((-second, first), -1)
    else:
        rotated = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    return x * cos + rotated * sin


def grouped_products(x, weight, bias, group_list, group_type, group_list_type):
    """[each group's rows of x[0] times its matrix in weight[0]]; with group_type 2 [each group's columns of x[0] times its rows
    of weight[0]], which is how gradients of weights are made."""
    if bias or group_type not in (BY_ROWS, BY_INNER) or len(x) != 1 or len(weight) != 1:
        raise NotImplementedError(
            f"the stand-in has one input, one weight and no bias, and not group type {group_type}"
        )
    counts = _counts(group_list, group_list_type)
    if group_type == BY_INNER:
        pairs = zip(x[0].split(counts, 1), weight[0].split(counts), strict=True)
        return [torch.stack([columns @ rows for columns, rows in pairs])]
    return [torch.cat([part @ matrix for part, matrix in zip(x[0].split(counts), weight[0], strict=True)])]


def grouped_gradients(grads, x, weight, group_list, group_list_type):
    """([of the input], [of the weight], [of the bias, which there is none of])."""
    counts = _counts(group_list, group_list_type)
    of_x = grouped_input_gradients(grads, weight, group_list, group_list_type)[0]
    pairs = zip(x[0].split(counts), grads[0].split(counts), strict=True)
    return of_x, [torch.stack([rows.t() @ grad for rows, grad in pairs])], []


def grouped_input_gradients(grads, weight, group_list, group_list_type):
    parts = grads[0].split(_counts(group_list, group_list_type))
    return [torch.cat([part @ matrix.t() for part, matrix in zip(parts, weight[0], strict=True)])], [], []


def add_weight_gradients(x, grad, group_list, main_grad):
    """Adds each group's gradient of its matrix to `main_grad` [groups, in, out], in its precision."""
    counts = _counts(group_list, CUMULATED)
    into = main_grad.view(len(counts), x.shape[-1], grad.shape[-1])
    for matrix, rows, grads in zip(into, x.split(counts), grad.split(counts), strict=True):
        matrix.add_(rows.to(matrix.dtype).t() @ grads.to(matrix.dtype))


def _counts(group_list, group_list_type):
    ends = group_list.tolist() if torch.is_tensor(group_list) else list(group_list)
    if group_list_type != CUMULATED:
        return ends
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]
