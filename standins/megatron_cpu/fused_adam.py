"""Stands for apex's FusedAdam as MindSpeed provides it on NPU (mindspeed/core/optimizer/adamw.py and swap_optimizer).

What Megatron's distributed optimizer sees is the same: `step` in the parameter group and not in the state, and, unless
`amsgrad` is set, a slot `max_exp_avg_sq` that holds None. The arithmetic is AdamW, in plain torch.
"""

import torch


class FusedAdam(torch.optim.Optimizer):
    """AdamW with MindSpeed's layout of the state."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, amsgrad=False):
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad}
        )

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
        if "max_exp_avg_sq" not in state:
            state["max_exp_avg_sq"] = torch.zeros_like(param) if group["amsgrad"] else None
        beta1, beta2 = group["betas"]
        state["exp_avg"].lerp_(param.grad, 1 - beta1)
        state["exp_avg_sq"].lerp_(param.grad.square(), 1 - beta2)
        second = state["exp_avg_sq"]
        if group["amsgrad"]:
            second = torch.maximum(state["max_exp_avg_sq"], second, out=state["max_exp_avg_sq"])
        correction1, correction2 = 1 - beta1 ** group["step"], 1 - beta2 ** group["step"]
        param.mul_(1 - group["lr"] * group["weight_decay"])
        param.addcdiv_(
            state["exp_avg"], (second / correction2).sqrt_().add_(group["eps"]), value=-group["lr"] / correction1
        )


def use_fused_adam():
    """Makes Megatron build this optimizer, as it does where apex (or MindSpeed's replacement of it) is installed."""
    import megatron.core.optimizer as optimizer
    import megatron.core.optimizer.distrib_optimizer as distrib_optimizer

    optimizer.Adam = distrib_optimizer.Adam = FusedAdam
    distrib_optimizer.HAVE_APEX_OR_TE = True
