"""Stands for transformer_engine.pytorch."""

from . import attention, distributed, optimizers
from .attention import DotProductAttention
from .layers import GroupedLinear, LayerNorm, LayerNormLinear, Linear, RMSNorm

__all__ = [
    "DotProductAttention",
    "GroupedLinear",
    "LayerNorm",
    "LayerNormLinear",
    "Linear",
    "RMSNorm",
    "attention",
    "distributed",
    "optimizers",
]
