"""A micro-batch that brings its context parallel group: rotary positions are those of the group's ranks."""

from __future__ import annotations

from typing import Any

import pytest
from harness import Upstream

PROBE = "probe_hdp_rotary.py"
CLOSE = 1e-5


@pytest.fixture(scope="module")
def ranks(upstream: Upstream) -> list[dict[str, Any]]:
    return list(upstream.run(PROBE, need=["megatron-lm"], standins=["megatron_cpu", "npu_attention"], procs=4))


@pytest.mark.on
def test_pairs_of_ranks_have_the_positions_of_whole_sequences(ranks: list[dict[str, Any]]) -> None:
    assert max(rank["functions"] for rank in ranks) < CLOSE


@pytest.mark.on
def test_a_model_of_ranks_alone_is_that_without_context_parallelism(ranks: list[dict[str, Any]]) -> None:
    assert max(difference for rank in ranks for difference in rank["model"]) < CLOSE


@pytest.mark.on
def test_recomputation_has_the_group_of_its_own_micro_batch(ranks: list[dict[str, Any]]) -> None:
    # Two forward passes, then a recomputation for each backward pass, first micro-batch first.
    assert all(rank["seen"] == [0, 1, 0, 1] for rank in ranks)


@pytest.mark.on
def test_the_fields_come_after_upstreams(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["fields"][-3:] == ["max_seqlen_kv", "cp_group", "cp_overlap_group"]
