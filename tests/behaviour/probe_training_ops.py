"""Probe: the operators of standins/torch_npu/reference_train_ops.py against Hugging Face's own modules and PyTorch, values and
gradients; prints the largest difference of each, and what is refused."""

import json

import npu_attention
import torch
import torch_npu
from transformers.models.qwen3 import modeling_qwen3


def worst(function, reference, *inputs):
    """The largest difference of the results and of the inputs' gradients."""
    results = []
    for one in (function, reference):
        copies = [value.clone().requires_grad_() for value in inputs]
        out = one(*copies)
        (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
        results.append([out.detach(), *(copy.grad for copy in copies)])
    return max((a - b).abs().max().item() for a, b in zip(*results, strict=True))


def rms_norm():
    norm = modeling_qwen3.Qwen3RMSNorm(16, eps=1e-5)

    def reference(x, weight):
        norm.weight = torch.nn.Parameter(weight.detach())
        return torch.func.functional_call(norm, {"weight": weight}, (x,))

    return worst(
        lambda x, w: torch_npu.npu_rms_norm(x, w, epsilon=1e-5)[0], reference, torch.randn(5, 16), torch.randn(16)
    )


def rotary_mul():
    angles = torch.rand(1, 1, 5, 8).repeat(1, 1, 1, 2)
    cos, sin = angles.cos(), angles.sin()

    def reference(x):
        return modeling_qwen3.apply_rotary_pos_emb(x, x, cos[0], sin[0])[0]

    return worst(lambda x: torch_npu.npu_rotary_mul(x, cos, sin), reference, torch.randn(1, 3, 5, 16))


def cross_entropy():
    labels = torch.tensor([0, 3, 6])
    return worst(
        lambda x: torch_npu.npu_cross_entropy_loss(x, labels, reduction="none")[0],
        lambda x: torch.nn.functional.cross_entropy(x, labels, reduction="none"),
        torch.randn(3, 7),
    )


def attention_of_rows():
    """Layout BSND, causal, with two query heads a key head."""
    scale = 8**-0.5

    def reference(query, key, value):
        heads = [one.transpose(1, 2) for one in (query, key, value)]
        found = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True, scale=scale, enable_gqa=True)
        return found.transpose(1, 2)

    def rows(query, key, value):
        settings = {"scale": scale, "atten_mask": torch.ones(1), "sparse_mode": 3}
        return npu_attention.fusion_attention(query, key, value, 4, "BSND", **settings)[0]

    return worst(rows, reference, torch.randn(2, 5, 4, 8), torch.randn(2, 5, 2, 8), torch.randn(2, 5, 2, 8))


def refused():
    calls = {
        "interleaved rotation": lambda: torch_npu.npu_rotary_mul(*[torch.ones(2, 4)] * 3, rotary_mode="interleave"),
        "mean loss": lambda: torch_npu.npu_cross_entropy_loss(torch.ones(2, 4), torch.zeros(2).long()),
    }
    found = []
    for name, call in calls.items():
        try:
            call()
        except NotImplementedError:
            found.append(name)
    return found


torch.manual_seed(0)
worst_of = {one.__name__: one() for one in (rms_norm, rotary_mul, cross_entropy, attention_of_rows)}
print(json.dumps({"worst": worst_of, "refused": refused()}))
