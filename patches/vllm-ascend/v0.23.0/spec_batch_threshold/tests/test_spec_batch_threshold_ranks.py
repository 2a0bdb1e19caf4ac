"""spec_batch_threshold: two data parallel engines that share a model's experts pause, and speculate again, together."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from harness import Upstream
from models import TinyModels
from thresholds import NPU, drafting_after, switches, threshold

UPPER, LOWER = 5, 2


@pytest.fixture(scope="module")
def ranks(upstream: Upstream, tiny_models: TinyModels) -> Any:
    script = "probe_spec_threshold_ranks.py"
    return upstream.run(script, tiny_models.qwen3_moe, threshold(UPPER, LOWER), procs=2, **NPU)


@pytest.mark.on
@pytest.mark.slow
def test_ranks_with_uneven_load_agree(ranks: Any) -> None:
    steps = [rank["steps"] for rank in ranks]
    busiest = [max(step["running"] for step in together) for together in zip(*steps, strict=True)]
    decisions = drafting_after(busiest, UPPER, LOWER)
    assert switches(decisions) >= 3
    for rank in steps:
        assert [step["drafting"] for step in rank] == decisions
        for before, step in zip(decisions, rank[1:], strict=False):
            assert before or step["drafts"] == 0
    # What ranks exchange besides is as upstream has it: the tokens of each.
    assert [step["tokens"] for step in steps[0]] == [step["tokens"] for step in steps[1]]
    # One rank goes from more requests than let speculation come back to none; the others are not held up by it.
    ends = [before["running"] for before, step in pairwise(steps[1]) if step["running"] == 0 < before["running"]]
    assert max(ends) > LOWER
    own = [drafting_after([step["running"] for step in rank], UPPER, LOWER) for rank in steps]
    assert own[0] != decisions and own[1] != decisions


@pytest.mark.on
@pytest.mark.slow
def test_ranks_speculate_again_and_go_on_without_requests(ranks: Any) -> None:
    for rank in ranks:
        assert {step["drafting"] for step in rank["steps"]} == {True, False}
        assert any(step["running"] == 0 for step in rank["steps"])
        assert rank["tokens"] == rank["greedy"]
    # The second rank's requests outlast the first one's wave, and are drafted for before and after it.
    steps = ranks[1]["steps"]
    off = next(at for at, step in enumerate(steps) if step["drafting"] is False)
    assert sum(step["drafts"] for step in steps[: off + 1]) > 0
    assert sum(step["drafts"] for step in steps[off + 1 :]) > 0


@pytest.mark.on
@pytest.mark.slow
def test_a_request_that_waits_for_its_turn_loses_its_drafts(ranks: Any) -> None:
    # The second rank is told to pause in a step in which one of its requests waited for tokens, with drafts of its own.
    steps = ranks[1]["steps"]
    off = next(at for at, step in enumerate(steps) if step["drafting"] is False)
    assert steps[off]["waiting_with_drafts"] > 0
    assert (steps[off + 1]["running"], steps[off + 1]["drafts"]) == (4, 0)
