"""sam_shared_history without an engine: whose tokens are drafted, how long they are kept, and in how much memory.

Every draft is compared with a search of every position of what has ended.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from harness import Upstream

PROBE = "probe_sam_shared_runner.py"
NPU: dict[str, Any] = {
    "need": ["vllm", "vllm-ascend"],
    "standins": [
        "vllm-cpu-dist-info", "vllm-ascend-dist-info", "torch_npu", "npu_engine", "npu_engine_0_23", "torchvision",
    ],
    "timeout": 600,
}  # fmt: skip


@pytest.fixture(scope="module")
def seen(upstream: Upstream) -> Any:
    return upstream.run(PROBE, **NPU)


@pytest.mark.on
def test_drafts_are_of_the_longer_match_along_what_followed_most_often(seen: Any) -> None:
    found = seen["searched"]
    assert found["wrong"] == []
    assert found["compared"] > 2 * found["shared"] / 1.2 > 1000
    for happened in ("frequent", "updates", "replaced"):
        assert found[happened] > 40, happened


@pytest.mark.on
def test_every_rank_adds_in_the_same_order(seen: Any) -> None:
    one, other = seen["order"]
    assert one == other == [[8]]


@pytest.mark.on
def test_requests_with_images_share_nothing(seen: Any) -> None:
    assert seen["images"] == {"bytes": 0, "drafts": [[], [6, 7]]}


@pytest.mark.on
def test_requests_with_embeddings_in_their_prompt_share_nothing(seen: Any) -> None:
    assert seen["embeddings"] == {"bytes": 0, "drafts": [[], [6, 7]]}


@pytest.mark.on
def test_the_class_that_vllm_is_given_goes_by_the_setting(seen: Any) -> None:
    assert seen["kinds"] == {
        "with": ["SharedSamProposer", "SuffixAutomatonPool"],
        "without": ["SamProposer", "ContextTables"],
    }


@pytest.mark.on
def test_a_generation_serves_for_its_updates_and_as_many_more(seen: Any) -> None:
    assert seen["ages"] == [[2, 2, 0, 0, 0, 0], [2, 2, 2, 2, 0, 0]]


@pytest.mark.on
def test_at_the_cap_the_older_generation_goes_and_then_no_more_is_added(seen: Any) -> None:
    full = seen["full"]
    assert max(full["used"]) <= 1 << 20
    dropped = [i for i, (before, after) in enumerate(pairwise(full["generations"])) if before[1] > after[1]]
    assert len(dropped) == 1
    assert full["used"][dropped[0] + 1] < full["used"][dropped[0]]
    assert all(full["added"][: dropped[0] + 2])
    first = full["added"].index(False)
    assert not any(full["added"][first:])
    assert len(set(full["used"][first:])) == 1
    assert full["left_out"] == full["added"].count(False) > 0
    # An update told twice counts once; the next request that ends finds its room where the older generation was.
    assert full["after"] == [full["used"][-1], [0, 1]]
    assert full["room"] == [True, [1, 0]]
    assert full["small"] == [full["used"][0]] * 2


@pytest.mark.on
def test_where_room_ends_in_the_middle_of_a_request_it_goes_on_empty(seen: Any) -> None:
    case = seen["given_up"]
    assert case["added"][-1] is False and all(case["added"][:-1])
    assert (case["used"], case["drafts"], case["goes_on"]) == (0, [[2, 3]], True)
