"""A ring of three ranks whose messages take two groups: every receive finds its send."""

from __future__ import annotations

import pytest
from harness import Upstream

PROBE = "probe_hdp_odd_ring.py"
# A ring that works takes about 10 s here, most of it imports; one that waits for a message on the wrong group, as long
# as the group's time limit.
LIMIT_S = 60.0
CLOSE = 1e-5


def differences(upstream: Upstream, groups: str, procs: int) -> dict[str, float]:
    """Of output and gradients from full attention, the largest of any rank."""
    standins = ["torch_npu", "megatron_cpu", "npu_attention"]
    need = ["mindspeed", "megatron-lm"]
    ranks = upstream.run(PROBE, groups, need=need, standins=standins, procs=procs, timeout=LIMIT_S)
    return {name: max(rank[name] for rank in ranks) for name in ranks[0]}


@pytest.mark.on
def test_three_ranks_with_a_second_group_equal_full_attention(upstream: Upstream) -> None:
    found = differences(upstream, "two", procs=3)
    assert sorted(found) == ["key", "output", "query", "value"]
    assert max(found.values()) < CLOSE, found


@pytest.mark.off
@pytest.mark.parametrize(("groups", "procs"), [("one", 3), ("two", 2)])
def test_rings_that_worked_still_equal_full_attention(upstream: Upstream, groups: str, procs: int) -> None:
    found = differences(upstream, groups, procs)
    assert max(found.values()) < CLOSE, found
