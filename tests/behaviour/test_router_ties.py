"""What the table of recipes takes for a near tie of a router (tests/recipes/ties.py)."""

from __future__ import annotations

import pytest
from harness import Upstream


@pytest.mark.parametrize("architecture", ["Qwen3Moe", "DeepseekV3"])
def test_an_answer_is_explained_by_a_choice_that_is_near_and_by_nothing_else(
    upstream: Upstream, architecture: str
) -> None:
    found = upstream.run("tests/behaviour/probe_router_ties.py", architecture)
    assert found["own"] == found["turned"] == 0.0
    assert found["told"] > 0.25 >= found["within"]
    assert found["margins"] and max(found["margins"]) <= found["margin"] * 1.001
    assert found["none"] == [found["told"], []]
    assert found["unrelated"] > 0.25
