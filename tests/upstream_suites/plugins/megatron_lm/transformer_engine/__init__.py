"""Stands for Transformer Engine 1.13 without FP8 on a CPU: reference implementations, in plain PyTorch, of what
Megatron-core's wrappers (megatron/core/extensions/transformer_engine.py) derive from.

Most of Megatron's own tests build their layers on it. What it shows is that Megatron's side is the same with and without
a patch, not what TE's kernels do. Names that are not here fail to import, and Megatron falls back as it does without TE.
"""

from . import common, pytorch

__version__ = "1.13.0"
__all__ = ["common", "pytorch"]
