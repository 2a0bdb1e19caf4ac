"""Stands for transformer_engine.common."""

from . import recipe

__all__ = ["recipe"]
