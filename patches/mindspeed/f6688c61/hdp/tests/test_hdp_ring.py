"""Ring attention and rotary embedding of a micro-batch that brings its ranks equal those of whole sequences."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness import Upstream

PROBE = "probe_hdp_ring.py"
WHERE = {"need": ["megatron-lm", "mindspeed"], "standins": ["torch_npu", "megatron_cpu", "npu_attention"]}
CLOSE = 1e-5
THREE = {
    "one and the whole, odd": {"blocks": [[0, 3]], "overlap": True},
    "each alone": {"blocks": [[0, 1], [1, 1], [2, 1]]},
}
FOUR = {
    "pairs": {"blocks": [[0, 2], [2, 2]]},
    "pairs, second group, other order": {"blocks": [[0, 2], [2, 2]], "overlap": True, "backwards": True},
    "two alone and a pair": {"blocks": [[0, 1], [1, 1], [2, 2]], "backwards": True},
    "all, inner rings of two": {"blocks": [[0, 4]], "window": 2},
    "all, inner rings of two, second group": {"blocks": [[0, 4]], "window": 2, "overlap": True},
    "pairs where inner rings are of two": {"blocks": [[0, 2], [2, 2]], "window": 2},
    "pairs that keep keys": {"blocks": [[0, 2], [2, 2]], "cache": "full"},
}
EIGHT = {
    "halves, inner rings of two": {"blocks": [[0, 4], [4, 4]], "window": 2},
    "halves, inner rings of two, second group": {"blocks": [[0, 4], [4, 4]], "window": 2, "overlap": True},
}


def run(upstream: Upstream, cases: dict[str, Any], procs: int, timeout: float = 120) -> list[dict[str, Any]]:
    return list(upstream.run(PROBE, json.dumps(cases), procs=procs, timeout=timeout, **WHERE))


def largest(ranks: list[dict[str, Any]], case: str) -> dict[str, float]:
    """Differences from whole sequences, the largest of any rank; raises where a result is missing."""
    found = [rank[case]["differences"] for rank in ranks]
    assert all(sorted(one) == ["key", "output", "query", "value"] for one in found)
    return {name: max(one[name] for one in found) for name in found[0]}


@pytest.fixture(scope="module")
def four(upstream: Upstream) -> list[dict[str, Any]]:
    return run(upstream, FOUR, procs=4)


@pytest.mark.on
@pytest.mark.parametrize("case", FOUR)
def test_blocks_of_four_ranks(four: list[dict[str, Any]], case: str) -> None:
    found = largest(four, case)
    assert max(found.values()) < CLOSE, found


@pytest.mark.on
def test_rotary_embedding_is_mindspeeds(four: list[dict[str, Any]]) -> None:
    assert all(rank["rotary"] for rank in four)


@pytest.mark.on
def test_inner_rings_are_used_where_a_block_has_more_than_one(four: list[dict[str, Any]]) -> None:
    inner = {case: {rank[case]["inner"] for rank in four} for case in FOUR}
    assert inner["all, inner rings of two"] == {2}
    assert inner["pairs where inner rings are of two"] == {1}
    assert inner["two alone and a pair"] == {0, 1}


@pytest.mark.on
@pytest.mark.slow
@pytest.mark.parametrize(("cases", "procs"), [(THREE, 3), (EIGHT, 8)])
def test_odd_blocks_and_inner_rings_of_a_part(upstream: Upstream, cases: dict[str, Any], procs: int) -> None:
    ranks = run(upstream, cases, procs, timeout=400)
    for case in cases:
        found = largest(ranks, case)
        assert max(found.values()) < CLOSE, (case, found)
