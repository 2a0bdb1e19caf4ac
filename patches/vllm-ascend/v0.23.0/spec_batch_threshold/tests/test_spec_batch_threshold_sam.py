"""spec_batch_threshold: SamProposer is not asked during a pause, and learns what it has missed."""

from __future__ import annotations

import pytest
from harness import Upstream
from models import TinyModels
from thresholds import LOWER, NPU, UPPER, assert_greedy, drafting_after, drafts_by_phase, switches, threshold


@pytest.mark.on
@pytest.mark.slow
def test_a_suffix_automaton_may_miss_the_steps_of_a_pause(upstream: Upstream, tiny_models: TinyModels) -> None:
    if reason := upstream.lacks("vllm-ascend", "sam_proposer"):
        pytest.skip(reason)
    made = upstream.run("probe_spec_threshold.py", tiny_models.qwen3, "sam", threshold(UPPER, LOWER), **NPU)
    steps = made["runs"][0]["steps"]
    decisions = drafting_after([step["running"] for step in steps], UPPER, LOWER)
    assert switches(decisions) >= 5
    assert [step["proposed"] for step in steps] == decisions
    assert all(before or step["drafts"] == [] for before, step in zip(decisions, steps[1:], strict=False))
    assert sum(drafted > 0 for drafted in drafts_by_phase(decisions, steps)) >= 3
    assert sum(step["accepted"] for step in steps) > 0
    # What came during a pause has been learned when it is over: each draft follows an earlier place of the last token.
    assert sum(step["foreign"] for step in steps) == 0
    assert_greedy(made["runs"][0]["tokens"], made["greedy"])
