"""packed_cp_group_rope: a packed batch that brings its context parallel group has the rotary positions of that group's ranks."""

from __future__ import annotations

from typing import Any

import pytest
from harness import Upstream

CLOSE = 1e-5


@pytest.fixture(scope="module")
def ranks(upstream: Upstream) -> list[dict[str, Any]]:
    standins = ["megatron_cpu", "npu_attention"]
    return list(upstream.run("probe_packed_cp_group_rope.py", need=["megatron-lm"], standins=standins, procs=4))


def assert_close(ranks: list[dict[str, Any]], case: str) -> None:
    found = [rank[case] for rank in ranks]
    assert all(isinstance(one, float) and one < CLOSE for one in found), found


@pytest.mark.on
def test_sequences_on_a_rank_of_their_own(ranks: list[dict[str, Any]]) -> None:
    assert_close(ranks, "alone")


@pytest.mark.on
def test_sequences_on_pairs_of_ranks(ranks: list[dict[str, Any]]) -> None:
    assert_close(ranks, "pair")


@pytest.mark.off
def test_sequences_on_the_whole_group(ranks: list[dict[str, Any]]) -> None:
    assert_close(ranks, "no group")
