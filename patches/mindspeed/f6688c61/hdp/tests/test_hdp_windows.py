"""Inner rings (cp_window_size) and parts of the context parallel group that are no whole number of them."""

from __future__ import annotations

import json

import pytest
from harness import Upstream

# Ranks 2 and 3 are one window, and in different parts: both parts are single rings. All six are three windows.
SIX = {
    "halves of three": {"blocks": [[0, 3], [3, 3]], "window": 2},
    "all": {"blocks": [[0, 6]], "window": 2},
}
INNER = {"halves of three": 1, "all": 2}
WHERE = {"need": ["megatron-lm", "mindspeed"], "standins": ["torch_npu", "megatron_cpu", "npu_attention"]}


@pytest.mark.on
@pytest.mark.slow
def test_parts_of_one_and_a_half_windows_are_single_rings(upstream: Upstream) -> None:
    ranks = upstream.run("probe_hdp_ring.py", json.dumps(SIX), procs=6, timeout=300, **WHERE)
    for case, inner in INNER.items():
        assert {rank[case]["inner"] for rank in ranks} == {inner}
        assert max(value for rank in ranks for value in rank[case]["differences"].values()) < 1e-5, case
