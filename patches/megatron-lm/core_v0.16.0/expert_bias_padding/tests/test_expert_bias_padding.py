"""expert_bias_padding: the router counts no padding for the bias of its experts, and ends in no error for it."""

from __future__ import annotations

from typing import Any

import pytest
from harness import Upstream


@pytest.fixture(scope="module")
def made(upstream: Upstream) -> Any:
    return upstream.run("probe_expert_bias_padding.py", need=["megatron-lm"], standins=["megatron_cpu"])


def of_first(chosen: list[list[int]], tokens: int) -> list[int]:
    return [sum(expert) for expert in zip(*chosen[:tokens], strict=True)]


@pytest.mark.on
@pytest.mark.parametrize(("case", "tokens"), [("six", 4), ("four", 2)])
def test_the_last_two_tokens_are_padding(made: Any, case: str, tokens: int) -> None:
    """With as many tokens as experts upstream counts, and wrongly."""
    found = made[case]
    assert found["error"] is None
    assert found["counts"] == of_first(found["chosen"], tokens)
    assert sum(found["counts"]) == 2 * tokens


@pytest.mark.off
def test_without_a_mask_all_tokens_count(made: Any) -> None:
    assert made["none"]["counts"] == of_first(made["none"]["chosen"], 6)
