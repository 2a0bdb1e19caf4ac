"""What a distributed optimizer of Megatron-LM holds, on the device or on MindSpeed's host."""

import torch


def tensors(optimizer):
    """Of each parameter the tensors that the optimizer has on the device, as upstream keeps them."""
    inner = optimizer.optimizer
    return [{"param": p, **inner.state[p]} for group in inner.param_groups for p in group["params"]]


def without_memory(optimizer):
    """How many parameters have no memory on the device for a tensor of that name."""
    counts = {"param": 0, "exp_avg": 0, "exp_avg_sq": 0}
    for held in tensors(optimizer):
        for name in counts:
            counts[name] += held[name].untyped_storage().size() == 0
    return counts


def values(optimizer):
    """Copies of all of them, from the host where the device has no memory."""
    on_host = getattr(optimizer, "param_to_cpu_states_map", {})
    return [
        (value if value.untyped_storage().size() else on_host[held["param"]][name]).detach().clone()
        for held in tensors(optimizer)
        for name, value in held.items()
        if value is not None
    ]


def different(one, other):
    """How many of these values are not the same."""
    return sum(not torch.equal(*pair) for pair in zip(one, other, strict=True))
