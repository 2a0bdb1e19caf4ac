"""sam_proposer: a request's history is the right one whatever becomes of the request. Played on vllm-ascend's own batch, without a model."""

from __future__ import annotations

from typing import Any

import pytest
from harness import Upstream

PROBE = "probe_sam_history.py"
NPU: dict[str, Any] = {
    "need": ["vllm", "vllm-ascend"],
    "standins": [
        "vllm-cpu-dist-info", "vllm-ascend-dist-info", "torch_npu", "npu_engine", "npu_engine_0_23", "torchvision",
    ],
    "timeout": 600,
}  # fmt: skip


@pytest.fixture(scope="module")
def played(upstream: Upstream) -> Any:
    return upstream.run(PROBE, **NPU)


@pytest.mark.on
@pytest.mark.parametrize("play", ["alone", "shared"])
def test_histories_are_right_whatever_becomes_of_requests(played: Any, play: str) -> None:
    course = played[play]
    assert course["wrong"] == []
    for happened in ("compared", "drafted", "taken_back", "same_id", "resumed"):
        assert course[happened] > 20, happened
    assert (course["capped"], course["waited"], course["left"]) == (0, 0, 0)


@pytest.mark.on
def test_memory_is_bounded_and_others_go_on(played: Any) -> None:
    course = played["full"]
    assert course["wrong"] == []
    assert course["compared"] - course["waited"] > course["capped"] > 0
    assert 0 < course["most_bytes"] <= 1 << 20
    assert course["left"] == 0


@pytest.mark.on
def test_a_step_learns_a_bounded_number_of_tokens(played: Any) -> None:
    # 4,096 beside the three drafts and one more of each, the shortest first; what waits gets no drafts in this step.
    assert played["bound"] == [[1102, 5, 3000, 6], [0, 3, 3, 3]]
    # A history of 8,000 tokens takes two steps to be learnt.
    assert played["full"]["waited"] > 20


@pytest.mark.on
def test_automata_serve_what_tables_do_not(played: Any) -> None:
    pools = {"alone": "ContextTables", "shared": "SuffixAutomatonPool", "long": "SuffixAutomatonPool"}
    assert played["pools"] == pools


@pytest.mark.on
def test_requests_with_adapters_of_their_own_draft_as_if_alone(played: Any) -> None:
    course = played["adapters"]
    assert course["wrong"] == []
    assert course["compared"] > 1000
    assert course["drafted"] > 500
    assert course["left"] == 0
