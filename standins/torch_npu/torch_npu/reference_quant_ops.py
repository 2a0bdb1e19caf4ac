"""CPU reference implementations of the NPU operators that vllm-ascend's quantized experts (W8A8 dynamic, W4A16) call.

What they compute is what torch_npu's documentation of npu_dynamic_quant, npu_grouped_matmul and
npu_grouped_matmul_swiglu_quant says of these modes. Each is checked against plain PyTorch in
tests/behaviour/test_moe_standins.py. Static quantization, int4 packing and biases are not implemented.
"""

import torch

LARGEST = 127


def dynamic_quant(x):
    """Each row as int8 with a scale (float32) of its own: the row's largest magnitude becomes 127."""
    rows = x.float()
    scale = rows.abs().amax(-1) / LARGEST
    quantized = (rows / scale.masked_fill(scale == 0, 1).unsqueeze(-1)).round()
    return quantized.to(torch.int8), scale


def dequantized_product(rows, matrix, scale, per_token_scale):
    """int8 rows times an int8 matrix, exactly, times the scale of each column and of each row (float32)."""
    if rows.dtype != torch.int8 or matrix.dtype != torch.int8:
        raise NotImplementedError(f"the stand-in scales int8 products only, not {rows.dtype} by {matrix.dtype}")
    # Sums of int8 products stay far below 2**53.
    exact = rows.double() @ matrix.double()
    return (exact * scale.double() * per_token_scale.double().unsqueeze(-1)).float()


def dequantized_weight(matrix, scale, offset):
    """An integer matrix with a scale and an offset for each column, as float32."""
    return (matrix.float() + offset.float()) * scale.float()


def grouped_matmul_swiglu_quant(*, x, weight, group_list, weight_scale, x_scale, **unused):
    """Experts' first product, SwiGLU and quantization of the result in one operator; `group_list` holds running sums.

    x: int8 (rows, in); weight: int8 (experts, in, 2 * width); weight_scale: (experts, 2 * width); x_scale: (rows).
    Returns int8 (rows, width), its scales (rows) in float32, and nothing for the offset.
    """
    if any(value is not None for value in unused.values()):
        raise NotImplementedError(f"the stand-in has no {', '.join(unused)}")
    hidden = torch.zeros(len(x), weight.shape[2])
    start = 0
    for expert, end in enumerate(group_list.tolist()):
        part = slice(start, end)
        hidden[part] = dequantized_product(x[part], weight[expert], weight_scale[expert], x_scale[part])
        start = end
    gate, up = hidden.chunk(2, -1)
    return *dynamic_quant(torch.nn.functional.silu(gate) * up), None
