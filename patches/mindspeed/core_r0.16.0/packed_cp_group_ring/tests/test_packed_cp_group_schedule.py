"""packed_cp_group_ring: Megatron-LM's own scheduler of hybrid context parallelism trains a model with MindSpeed's attention."""

from __future__ import annotations

import pytest
from harness import Upstream

# Of the two data parallel ranks. A rank takes up to 16 tokens; the scheduler spreads a sequence wider where ranks are idle.
LENGTHS = [[64, 16, 32], [24, 16, 64, 16, 8]]
WHERE = {"need": ["megatron-lm", "mindspeed"], "standins": ["torch_npu", "megatron_cpu", "npu_attention"]}


@pytest.mark.on
def test_a_step_of_the_scheduler_equals_one_of_whole_sequences(upstream: Upstream) -> None:
    ranks = upstream.run("probe_packed_cp_group_schedule.py", LENGTHS, procs=4, timeout=400, **WHERE)
    shared = {tuple(one) for rank in ranks for one in rank["shared"]}
    assert {length for length, _ in shared} == {length for one in LENGTHS for length in one}
    assert {size for _, size in shared} == {1, 2, 4}
    for rank in ranks:
        assert rank["attention"] == "MindSpeedCPDotProductAttention"
        assert rank["parameters"] == 15
        assert max(rank["loss"], rank["gradients"]) < 1e-5, rank
