"""Stands for triton, which a CPU does not have: MindSpeed's adaptor imports kernels from core_r0.16.0 on, whatever the model.

Kernels can be declared, and to launch one fails. Every other name can be imported, and to call it fails.
"""

import sys
import types
from functools import partial

from torch.utils._triton import has_triton_package

BELOW = ("language", "language.math", "language.extra", "language.extra.libdevice", "runtime", "runtime.driver")


def install():
    """Call it before MindSpeed's adaptor is imported. torch, which asks once, has found no triton, and compiles without."""
    if has_triton_package():
        raise RuntimeError("triton is there already")
    for name in ("triton", *(f"triton.{below}" for below in BELOW)):
        module = sys.modules[name] = types.ModuleType(name)
        module.__getattr__ = partial(_refusing, name)
        above, _, own = name.rpartition(".")
        if above:
            setattr(sys.modules[above], own, module)
    declaring = {"jit": jit, "autotune": _unchanged, "heuristics": _unchanged, "Config": Config}
    sys.modules["triton"].__dict__.update(declaring, __version__="3.2.2")  # of triton-ascend, which the release set has


def _refuse(name, *args, **kwargs):
    raise NotImplementedError(f"{name} has no stand-in")


def _refusing(module, name):
    """For a name that is imported, or that annotates a kernel's parameter."""
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {"__init__": partial(_refuse, f"{module}.{name}")})


class Kernel:
    """What was declared: `kernel[grid](...)` would launch it."""

    def __init__(self, function):
        self.name = function.__qualname__

    def __getitem__(self, grid):
        return partial(_refuse, f"the Triton kernel {self.name}")


class Config:
    """A choice of autotune's, which nothing asks for here."""

    def __init__(self, *args, **options):
        pass


def jit(function=None, **options):
    return Kernel if function is None else Kernel(function)


def _unchanged(*args, **options):
    """autotune and heuristics, which say how a kernel is launched."""
    return lambda kernel: kernel
