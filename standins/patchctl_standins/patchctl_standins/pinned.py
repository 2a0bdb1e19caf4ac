"""Pinned memory, which vllm-ascend's rejection sampler asks torch for: without a device's driver there is none, and torch raises.

Where MindSpeed's adaptor is imported megatron_cpu has taken it out already; a run without MindSpeed's tree needs it as well.
"""

import functools

import torch
import torch.utils._device

FACTORIES = ("arange", "full", "ones", "tensor", "zeros")


def leave_out(module):
    """torch's factories make plain memory instead; a copy out of it is whole when the call returns."""
    # Lists the functions that `with torch.device(...)` answers for, once a process: before they are wrapped.
    torch.utils._device._device_constructors()
    for name in FACTORIES:
        setattr(torch, name, _without_pinning(getattr(torch, name)))


def _without_pinning(factory):
    @functools.wraps(factory)
    def made(*args, **settings):
        settings.pop("pin_memory", None)
        return factory(*args, **settings)

    return made
