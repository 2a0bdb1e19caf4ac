"""ep_alltoallv_reshard: the exchange is made while the actor's weights are offloaded, as every recipe that has it asks."""

from __future__ import annotations

import pytest
from harness import Upstream

PROBE = "probe_reshard_offload.py"
FAMILIES = ("qwen3_moe", "qwen3_moe_grouped")


@pytest.mark.on
def test_the_exchange_is_made_of_an_offloaded_model(upstream: Upstream) -> None:
    where = {"need": ["verl", "megatron-lm"], "standins": ["megatron_cpu"]}
    found = upstream.run(PROBE, *FAMILIES, timeout=200, **where)
    assert {
        name: (one["offloaded"], one.get("error"), one.get("same")) for name, one in found.items()
    } == dict.fromkeys(FAMILIES, (True, None, True))
    assert all(one["records"] > 0 for one in found.values())
