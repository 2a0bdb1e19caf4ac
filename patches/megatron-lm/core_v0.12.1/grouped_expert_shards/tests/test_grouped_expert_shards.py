"""The optimizer's share of grouped experts is saved and loaded wherever the shards begin: within an expert, within a row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness import Upstream

PROBE = "probe_grouped_expert_shards.py"
TREES: dict[str, Any] = {"need": ["megatron-lm"], "standins": ["megatron_cpu"], "timeout": 240}
STATES = ["exp_avg", "exp_avg_sq", "param"]


@pytest.mark.on
def test_every_shard_says_where_it_lies_and_comes_back_the_same(upstream: Upstream) -> None:
    found = upstream.run(PROBE, "pieces", **TREES)
    assert found == {"shards": 300, "misplaced": 0, "changed": 0, "errors": 0}


@pytest.mark.on
@pytest.mark.parametrize("ranks", [2, 3])
def test_saved_and_loaded_on_data_parallel_ranks(upstream: Upstream, tmp_path: Path, ranks: int) -> None:
    first = upstream.run(PROBE, "round_trip", tmp_path / "checkpoint", procs=ranks, **TREES)[0]
    assert first == {"before": STATES, "after": [], "next": []}


@pytest.mark.on
def test_loaded_on_fewer_ranks(upstream: Upstream, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    upstream.run(PROBE, "save", folder, procs=3, **TREES)
    assert upstream.run(PROBE, "load", folder, procs=2, **TREES)[0] == {"before": STATES, "after": []}


@pytest.mark.off
def test_one_rank_saves_and_loads_as_upstream_does(upstream: Upstream, tmp_path: Path) -> None:
    found = upstream.run(PROBE, "round_trip", tmp_path / "checkpoint", **TREES)
    assert found == {"before": STATES, "after": [], "next": []}
