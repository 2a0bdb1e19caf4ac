"""sam_proposer: drafts from a request's own tokens, in real engines, with the tokens of engines without speculation.

One probe runs all engines, each in a process of its own. That the drafts are the right ones is checked as well: with a
wrong history the tokens would still be right, for drafts are verified.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from harness import Upstream
from models import TinyModels

PROBE = "probe_sam_proposer.py"
NPU = {
    "need": ["vllm-ascend", "vllm"],
    "standins": ["torch_npu", "npu_engine", "vllm-cpu-dist-info", "vllm-ascend-dist-info"],
    "env": {"VLLM_ASCEND_ENABLE_NZ": "0"},
}
LENGTHS = [120, 60, 90, 50, 255, 40, 130]
MIXED = dict(enumerate(LENGTHS))


@pytest.fixture(scope="module")
def played(upstream: Upstream, tiny_models: TinyModels) -> Any:
    return upstream.run(PROBE, tiny_models.qwen3, "history", timeout=200, **NPU)


@pytest.fixture(scope="module")
def seen(upstream: Upstream, tiny_models: TinyModels) -> Any:
    return upstream.run(PROBE, tiny_models.qwen3, "plain", "sam", "sam_group", timeout=400, **NPU)


def of(seen: Any, case: str) -> Any:
    assert "error" not in seen[case], seen[case]
    return seen[case]


def expected(seen: Any, lengths: dict[int, int]) -> list[list[int]]:
    return [seen["plain"]["tokens"][index][:length] for index, length in lengths.items()]


def assert_speculated(load: Any) -> None:
    assert load["drafted"] > load["accepted"] > 0
    assert load["compared"] > 0
    assert load["wrong"] == []


@pytest.mark.on
@pytest.mark.parametrize("play", ["alone", "shared"])
def test_histories_are_right_whatever_becomes_of_requests(played: Any, play: str) -> None:
    course = of(played, "history")[play]
    assert course["wrong"] == []
    for happened in ("compared", "drafted", "taken_back", "same_id", "resumed"):
        assert course[happened] > 20, happened
    assert (course["capped"], course["waited"], course["left"]) == (0, 0, 0)


@pytest.mark.on
def test_memory_is_bounded_and_others_go_on(played: Any) -> None:
    course = of(played, "history")["full"]
    assert course["wrong"] == []
    assert course["compared"] - course["waited"] > course["capped"] > 0
    assert 0 < course["most_bytes"] <= 1 << 20
    assert course["left"] == 0


@pytest.mark.on
def test_a_step_learns_a_bounded_number_of_tokens(played: Any) -> None:
    # 4,096 beside the three drafts and one more of each, the shortest first; what waits gets no drafts in this step.
    assert of(played, "history")["bound"] == [[1102, 5, 3000, 6], [0, 3, 3, 3]]
    # A history of 8,000 tokens takes two steps to be learnt.
    assert of(played, "history")["full"]["waited"] > 20


@pytest.mark.on
def test_automata_serve_what_tables_do_not(played: Any) -> None:
    pools = {"alone": "ContextTables", "shared": "SuffixAutomatonPool", "long": "SuffixAutomatonPool"}
    assert of(played, "history")["pools"] == pools


@pytest.mark.on
def test_tokens_are_those_without_speculation(seen: Any) -> None:
    load = of(seen, "sam")["mixed"]
    assert_speculated(load)
    assert load["tokens"] == expected(seen, MIXED)
    assert load["preempted"] > 0
    assert load["chunks"] > 0
    assert seen["sam"]["text"] == "SpeculativeConfig(method='sam', model=None, num_spec_tokens=3)"


@pytest.mark.on
def test_hits_of_the_prefix_cache(seen: Any) -> None:
    load = of(seen, "sam")["prefix"]
    assert load["wrong"] == []
    assert load["drafted"] > 0
    assert load["prefix_hits"] > 0
    assert load["tokens"] == expected(seen, {3: 40, 5: 40})


@pytest.mark.on
def test_aborts_leave_the_others_as_they_are(seen: Any) -> None:
    load = of(seen, "sam")["aborted"]
    assert_speculated(load)
    assert load["tokens"] == {str(index): expected(seen, {index: LENGTHS[index]})[0] for index in (0, 6, 1, 5)}


@pytest.mark.on
@pytest.mark.parametrize("load", ["skipped", "seldom"])
def test_steps_without_drafts_lose_nothing(seen: Any, load: str) -> None:
    found = of(seen, "sam")[load]
    assert found["skipped"] > found["steps"] // 3
    assert found["wrong"] == []
    assert found["compared"] > 0
    assert found["accepted"] > 0
    assert found["tokens"] == expected(seen, MIXED if load == "skipped" else {0: 60, 1: 60, 2: 60})


@pytest.mark.on
def test_the_sampler_of_random_requests_gives_the_same_where_there_is_one_choice(seen: Any) -> None:
    load = of(seen, "sam")["one_choice"]
    assert_speculated(load)
    assert load["tokens"] == expected(seen, {0: 60, 1: 60})


@pytest.mark.on
def test_nothing_is_kept_of_requests_that_ended(seen: Any) -> None:
    nothing = {"runner": 0, "requests": 0, "bytes": 0}
    assert of(seen, "sam")["left"] == nothing
    assert of(seen, "sam_group")["alone"]["left"] == seen["sam_group"]["shared"]["left"] == nothing


@pytest.mark.on
def test_samples_of_a_prompt_share_what_they_have_generated(seen: Any) -> None:
    group = of(seen, "sam_group")
    samples = [(0, 110), (0, 20), (0, 20), (0, 20), (0, 80), (0, 80), (1, 40)]
    tokens = [expected(seen, {index: length})[0] for index, length in samples]
    for mode in ("alone", "shared"):
        assert group[mode]["repeated"]["tokens"] == tokens
        assert group[mode]["several"]["tokens"] == expected(seen, {1: 50}) * 3
        assert group[mode]["several"]["accepted"] > 0
        assert group[mode]["repeated"]["wrong"] == group[mode]["several"]["wrong"] == []
    # The two that begin later follow the long one, which is ahead of them, and need fewer steps of the model.
    alone, shared = group["alone"]["repeated"], group["shared"]["repeated"]
    assert shared["accepted"] > alone["accepted"] + 20 > 20
    assert shared["compared"] < alone["compared"]
    assert shared["followed"] > 5


@pytest.mark.on
@pytest.mark.slow
def test_it_goes_on_after_each_pause_of_spec_batch_threshold(upstream: Upstream, tiny_models: TinyModels) -> None:
    seen = upstream.run(PROBE, tiny_models.qwen3, "plain", "sam_threshold", timeout=400, **NPU)
    load = of(seen, "sam_threshold")
    assert_speculated(load)
    assert load["tokens"] == expected(seen, MIXED)
    switches = sum(one != other for one, other in pairwise(load["drafting"]))
    assert switches >= 2
    assert load["left"] == {"runner": 0, "requests": 0, "bytes": 0}


@pytest.mark.off
def test_without_speculation_it_is_not_imported(seen: Any) -> None:
    assert [len(tokens) for tokens in seen["plain"]["tokens"]] == LENGTHS
    assert seen["plain"]["imported"] == []


@pytest.mark.off
@pytest.mark.slow
def test_ngram_is_as_before(upstream: Upstream, tiny_models: TinyModels) -> None:
    seen = upstream.run(PROBE, tiny_models.qwen3, "plain", "ngram", timeout=400, **NPU)
    load = of(seen, "ngram")
    assert load["tokens"] == expected(seen, MIXED)
    assert load["drafted"] > load["accepted"] > 0
    assert load["preempted"] > 0
    assert load["imported"] == []
