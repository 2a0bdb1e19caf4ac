"""Probe: what stands for MindSpeed's compiled operators, called by MindSpeed's own functions, beside plain PyTorch."""

import json

import mindspeed_on_cpu
import triton_names

triton_names.install()
mindspeed_on_cpu.install()

import mindspeed_ops  # noqa: E402
import torch  # noqa: E402


def adamw():
    """Five steps beside torch's own AdamW: the largest difference of a weight."""
    from mindspeed.ops.npu_apply_fused_adamw_v2 import npu_apply_fused_adamw_v2

    ours = torch.randn(7, 5)
    theirs = torch.nn.Parameter(ours.clone())
    settings = {"lr": 1e-2, "betas": (0.8, 0.9), "eps": 1e-8, "weight_decay": 0.1}
    optimizer = torch.optim.AdamW([theirs], **settings)
    first, second = torch.zeros_like(ours), torch.zeros_like(ours)
    for step in range(1, 6):
        grad = theirs.grad = torch.randn(7, 5)
        npu_apply_fused_adamw_v2(
            ours, grad, first, second, None, torch.tensor(step), 1e-2, 0.8, 0.9, 0.1, 1e-8, False, False
        )
        optimizer.step()
    return float((ours - theirs).abs().max())


def rotary(mode):
    """Beside a product of complex numbers, of halves (mode 0) or of neighbours (mode 1)."""
    from mindspeed.ops.npu_rotary_position_embedding import npu_rotary_position_embedding

    x, angles = torch.randn(6, 1, 2, 8), torch.randn(6, 1, 1, 4)
    spread = torch.cat((angles, angles), -1) if mode == 0 else angles.repeat_interleave(2, -1)
    found = npu_rotary_position_embedding(x, spread.cos(), spread.sin(), mode)
    pairs = torch.complex(*x.chunk(2, -1)) if mode == 0 else torch.view_as_complex(x.unflatten(-1, (4, 2)).contiguous())
    turned = pairs * torch.polar(torch.ones_like(angles), angles)
    expected = torch.cat((turned.real, turned.imag), -1) if mode == 0 else torch.view_as_real(turned).flatten(-2)
    return float((found - expected).abs().max())


def grouped(counts, as_tensor):
    """Products and gradients of groups, one of them empty, beside one product a group."""
    from mindspeed.ops.gmm import npu_gmm

    x, weight = torch.randn(sum(counts), 6, requires_grad=True), torch.randn(len(counts), 6, 4, requires_grad=True)
    ends = torch.tensor(counts).cumsum(0)
    found = npu_gmm(x, weight, group_list=ends if as_tensor else ends.tolist(), group_type=0)
    expected = torch.cat([part @ matrix for part, matrix in zip(x.split(counts), weight, strict=True)])
    noise = torch.randn(expected.shape)
    ours, theirs = (torch.autograd.grad(out, (x, weight), noise, retain_graph=True) for out in (found, expected))
    pairs = [(found, expected), *zip(ours, theirs, strict=True)]
    return max(float((one - other).abs().max()) for one, other in pairs)


def added(counts):
    """Gradients of weights, added to what is there already, in float32."""
    x, grad = torch.randn(sum(counts), 6).bfloat16(), torch.randn(sum(counts), 4).bfloat16()
    into = torch.ones(len(counts), 6, 4)
    mindspeed_ops.add_weight_gradients(x, grad, torch.tensor(counts).cumsum(0), into)
    parts = zip(x.float().split(counts), grad.float().split(counts), strict=True)
    return float((into - 1 - torch.stack([one.t() @ other for one, other in parts])).abs().max())


def by_inner(counts):
    """Gradients of weights as MindSpeed's overlap asks for them, by groups of the inner dimension."""
    x, grad = torch.randn(sum(counts), 6), torch.randn(sum(counts), 4)
    ends = torch.tensor(counts).cumsum(0)
    (found,) = mindspeed_ops.grouped_products([x.t()], [grad], [], ends, 2, mindspeed_ops.CUMULATED)
    pairs = zip(x.split(counts), grad.split(counts), strict=True)
    return float((found - torch.stack([one.t() @ other for one, other in pairs])).abs().max())


def main():
    mindspeed_ops.install()
    torch.manual_seed(0)
    return {
        "adamw": adamw(),
        "rotary, halves": rotary(0),
        "rotary, pairs": rotary(1),
        "grouped, list": grouped([3, 0, 5], False),
        "grouped, tensor": grouped([2, 4], True),
        "by inner dimension": by_inner([3, 0, 2]),
        "added": added([3, 0, 2]),
    }


print(json.dumps(main()))
