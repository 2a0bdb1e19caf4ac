"""Transformer Engine's fused optimizers: AdamW with `step` in the parameter group, and SGD.

The functions over several tensors are not here; Megatron then takes its own, as it does without TE.
"""

import torch


class FusedAdam(torch.optim.Optimizer):
    """AdamW, or Adam with `adam_w_mode=False`."""

    def __init__(
        self, params, lr=1e-3, bias_correction=True, betas=(0.9, 0.999), eps=1e-8, adam_w_mode=True, weight_decay=0.0
    ):
        defaults = {"lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps}
        super().__init__(params, defaults | {"weight_decay": weight_decay})
        self.adam_w_mode = adam_w_mode

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for param in group["params"]:
                if param.grad is not None:
                    self._update(param, group)

    def _update(self, param, group):
        state = self.state[param]
        for key in ("exp_avg", "exp_avg_sq"):
            if key not in state:
                state[key] = torch.zeros_like(param)
        decay, (beta1, beta2) = group["weight_decay"], group["betas"]
        if self.adam_w_mode:
            param.mul_(1 - group["lr"] * decay)
        grad = param.grad if self.adam_w_mode else param.grad + decay * param
        state["exp_avg"].lerp_(grad, 1 - beta1)
        state["exp_avg_sq"].lerp_(grad.square(), 1 - beta2)
        power = group["step"] if group["bias_correction"] else float("inf")
        first, second = 1 - beta1**power, 1 - beta2**power
        denominator = (state["exp_avg_sq"] / second).sqrt_().add_(group["eps"])
        param.addcdiv_(state["exp_avg"], denominator, value=-group["lr"] / first)


class FusedSGD(torch.optim.SGD):
    """Stochastic gradient descent."""
