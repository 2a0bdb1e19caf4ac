"""Tiny Qwen3 and Qwen3-MoE models with random weights, for tests that need a checkpoint on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness import Upstream

PROBE = "tests/behaviour/make_tiny_models.py"


@dataclass(frozen=True)
class TinyModels:
    """Folders in Hugging Face layout (config, safetensors, tokenizer): two layers, hidden size 64, 512 tokens."""

    qwen3: Path
    qwen3_moe: Path


def make_tiny_models(upstream: Upstream, folder: Path) -> TinyModels:
    """Runs the probe that writes both models under `folder`."""
    made = upstream.run(PROBE, folder, timeout=180)
    return TinyModels(qwen3=Path(made["qwen3"]), qwen3_moe=Path(made["qwen3_moe"]))
