"""delta_weight_update: an engine on devices of its own gets what the optimizer changed, and has then what a whole update brings, bit for bit."""

from __future__ import annotations

import pytest
from delta_updates import holds, updated
from harness import Upstream
from models import TinyModels


@pytest.mark.on
def test_a_trainer_and_an_engine_of_two_ranks(upstream: Upstream, tiny_models: TinyModels) -> None:
    """Fused projections, cut by tensor parallelism."""
    holds(updated(upstream, "npu_engine_0_23", tiny_models.qwen3, 1, 2))
