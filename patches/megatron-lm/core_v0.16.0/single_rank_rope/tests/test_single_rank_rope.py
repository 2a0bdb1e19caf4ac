"""single_rank_rope: a sequence that one rank of a context parallel group has to itself has the rotary positions of a whole sequence."""

from __future__ import annotations

from typing import Any

import pytest
from harness import Upstream

CLOSE = 1e-5


@pytest.fixture(scope="module")
def ranks(upstream: Upstream) -> list[dict[str, Any]]:
    standins = ["megatron_cpu", "npu_attention"]
    return list(upstream.run("probe_single_rank_rope.py", need=["megatron-lm"], standins=standins, procs=2))


def assert_close(ranks: list[dict[str, Any]], case: str) -> None:
    found = [rank[case] for rank in ranks]
    assert all(isinstance(one, float) and one < CLOSE for one in found), found


@pytest.mark.on
@pytest.mark.parametrize("kind", ["rope", "yarn"])
def test_a_sequence_of_one_rank(ranks: list[dict[str, Any]], kind: str) -> None:
    assert_close(ranks, f"alone, {kind}")


@pytest.mark.off
@pytest.mark.parametrize("kind", ["rope", "yarn"])
def test_a_sequence_of_both_ranks(ranks: list[dict[str, Any]], kind: str) -> None:
    assert_close(ranks, f"both, {kind}")
