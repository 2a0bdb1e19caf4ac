"""The reference policy's settings of hybrid_data_parallel follow the actor's, all of them."""

from __future__ import annotations

import pytest
from harness import Upstream


@pytest.mark.on
def test_the_reference_has_the_actors_switch_division_and_costs(upstream: Upstream) -> None:
    found = upstream.run("probe_hdp_configuration.py", need=["verl"])
    names = ("hybrid_data_parallel", "hybrid_data_parallel_by_time", "hybrid_data_parallel_costs")
    costs = found["costs"]
    assert found["left alone"] == dict(zip(names, (True, False, dict.fromkeys(costs)), strict=True))
    assert found["actor's"] == dict(zip(names, (True, True, costs), strict=True))
    assert found["its own"] == dict(zip(names, (False, True, costs), strict=True))
