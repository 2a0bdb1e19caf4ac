"""Rotary embedding with apply_rope_fusion: a micro-batch that brings its ranks does not go through an operator that knows none."""

from __future__ import annotations

import pytest
from harness import Upstream

WHERE = {"need": ["megatron-lm", "mindspeed"], "standins": ["torch_npu", "megatron_cpu", "npu_attention"]}


@pytest.mark.on
def test_the_fused_operator_gets_whole_groups_only(upstream: Upstream) -> None:
    for rank in upstream.run("probe_hdp_fused.py", procs=2, timeout=120, **WHERE):
        assert rank["shared"] < 1e-5 and rank["alone"] < 1e-5, rank
        assert (rank["calls"], rank["without a group"], rank["its calls"]) == (0, 0.0, 1)
