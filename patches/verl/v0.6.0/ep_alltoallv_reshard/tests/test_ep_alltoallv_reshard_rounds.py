"""ep_alltoallv_reshard: a round holds as many experts as its bytes allow, of the weights' own type."""

from __future__ import annotations

import pytest
from harness import Upstream

# A fc1 of the small model: gate and up of 192 rows each by 64, in bfloat16; its fc2 is half of that.
FC1_BYTES = 2 * 192 * 64 * 2
CASE = f"qwen3_moe:8:1:1:1:4:2:{FC1_BYTES}"


@pytest.mark.on
def test_a_round_is_filled_to_its_bytes(upstream: Upstream) -> None:
    """Each engine's rank is sent four experts: one fc1 a round, and two fc2."""
    where = {"need": ["verl", "megatron-lm"], "standins": ["megatron_cpu"]}
    for rank in upstream.run("probe_reshard.py", CASE, procs=4, timeout=300, **where):
        found = rank[CASE]
        assert found["planned"]["expert_bytes"] == FC1_BYTES
        assert found["all_to_all"]["rounds"] == 4 * (4 + 2)  # of four layers
        # What is received, the copy that is sent, and the round before, which the loop still refers to.
        assert found["all_to_all"]["peak"] <= 3 * FC1_BYTES
