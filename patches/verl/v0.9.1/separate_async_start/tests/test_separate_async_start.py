"""separate_async_start: the trainer's set-up comes to its end where all engines are on nodes of their own."""

from __future__ import annotations

from typing import Any

import pytest
from harness import Upstream

PROBE = "probe_separate_async_start.py"
VERL: dict[str, Any] = {"need": ["verl"], "standins": ["torchvision"], "timeout": 400}


@pytest.mark.on
def test_it_starts_where_training_ranks_serve_no_rollout(upstream: Upstream) -> None:
    seen = upstream.run(PROBE, "apart", **VERL)
    assert (seen["mode"], seen["receivers"], seen["balanced"]) == ("trainer", 3, [])
    (line,) = seen["logged"]
    assert "actor_rollout_ref.hybrid_engine=False" in line and line.endswith("by 3 standalone replicas only")


@pytest.mark.off
def test_where_they_do_all_is_as_before(upstream: Upstream) -> None:
    seen = upstream.run(PROBE, "hybrid", **VERL)
    assert seen == {"mode": "rollout", "receivers": 3, "balanced": ["rollout"], "logged": []}
