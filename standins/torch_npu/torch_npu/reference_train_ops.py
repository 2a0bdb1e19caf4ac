"""CPU reference implementations of the NPU operators that a dense Qwen3 calls in verl's FSDP worker; all differentiable."""

import torch


def rms_norm(x, gamma, epsilon=1e-6):
    """(x over its root mean square times gamma, the reciprocal of that root); computed in float32, as the kernel does."""
    wide = x.float()
    rstd = torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    return (wide * rstd).to(x.dtype) * gamma, rstd


def rotary_mul(x, cos, sin, rotary_mode="half"):
    """x turned by the angles of cos and sin, the first half of the last dimension against the second."""
    if rotary_mode != "half":
        raise NotImplementedError(f"the stand-in turns halves, not {rotary_mode}")
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def cross_entropy_loss(logits, target, weight=None, reduction="mean", **settings):
    """(loss of each row, log-probabilities, an empty z-loss, log of the sum of exponentials)."""
    if weight is not None or reduction != "none" or settings:
        raise NotImplementedError("the stand-in has the loss of each row, without weights, smoothing and z-loss")
    sums = torch.logsumexp(logits.float(), -1)
    loss = sums - logits.float().gather(-1, target.unsqueeze(-1).long()).squeeze(-1)
    return loss.to(logits.dtype), logits.float() - sums.unsqueeze(-1), logits.new_zeros(0), sums
