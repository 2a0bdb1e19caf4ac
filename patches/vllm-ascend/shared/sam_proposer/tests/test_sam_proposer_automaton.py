"""sam_proposer's suffix automaton: exact, bounded, and the same slots again and again.

Every answer is compared with a search of every position of the histories (automaton_reference.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness import Upstream

PROBE = "probe_sam_automaton.py"
BYTES_A_TOKEN = 64
# At a root, of a token of 18 bits: the root's length and the tree of its 9 lowest bits, two reads for each edge on the way
# (its token, the edge behind it), of which the other 9 bits tell 10 apart at most, the last edge's token alone.
READS_AT_A_ROOT = 2 + 2 * 10 - 1


@pytest.fixture(scope="module")
def seen(upstream: Upstream) -> Any:
    return upstream.run(PROBE, need=["vllm-ascend"], timeout=300)


def assert_right(case: Any, compared: int) -> None:
    assert case["wrong"] == []
    assert case["compared"] >= compared
    assert case["used"] == 0


@pytest.mark.on
def test_match_and_drafts_are_those_of_a_search(seen: Any) -> None:
    assert_right(seen["single"], 500)


@pytest.mark.on
def test_drafts_follow_what_was_taken_last(seen: Any) -> None:
    assert seen["single"]["chosen"] > 100
    assert seen["single"]["latest"] / seen["single"]["chosen"] > 0.95


@pytest.mark.on
def test_settings_limit_drafts(seen: Any) -> None:
    for setting in ("3, 0", "1, 1", "2, 2"):
        assert_right(seen["settings"][setting], 200)
    assert seen["settings"]["limits"] == [0, 0, 1, 3, 4]


@pytest.mark.on
def test_a_batch_with_skipped_steps_aborts_and_slots_used_again(seen: Any) -> None:
    assert_right(seen["together"], 800)
    assert seen["together"]["most"] < 20 * 10240


@pytest.mark.on
def test_a_history_that_is_another_one_is_built_anew(seen: Any) -> None:
    assert_right(seen["synced"], 24)


@pytest.mark.on
def test_without_memory_a_request_gets_no_drafts_and_others_do(seen: Any) -> None:
    case = seen["capped"]
    assert_right(case, 100)
    assert case["told"] == [1, 1, 0, 0, 0]
    assert case["state"] == [True, False, 1, 0]
    assert case["refused"] is False
    assert case["small"] < 4 * 10240
    before, during, after, capped, used = case["group"]
    assert (before, during, after) == ([4, 4, 4], [0, 0, 4], [0, 0, 4])
    assert (capped, used) == (1, 0)


@pytest.mark.on
def test_members_of_a_group_are_served_by_what_all_have_generated(seen: Any) -> None:
    assert_right(seen["grouped"], 1000)
    assert seen["grouped"]["longest"] > 20
    alone, group = seen["group_size"]
    assert group < alone / 5


@pytest.mark.on
def test_bytes_and_time_a_token_are_bounded(seen: Any) -> None:
    sizes = dict(seen["size"])
    seconds = sizes.pop("seconds")
    assert {name: size for name, size in sizes.items() if not 20 < size <= BYTES_A_TOKEN} == {}
    assert seconds < 2  # 60,000 equal tokens; visiting all suffixes each step takes far longer


@pytest.mark.on
def test_a_lookup_has_a_bound_in_reads(seen: Any) -> None:
    most = dict(seen["reads"])
    assert most.pop("missing") == 0
    assert {kind: reads for kind, reads in most.items() if reads > READS_AT_A_ROOT} == {}


@pytest.mark.on
def test_neither_torch_nor_vllm_is_imported(seen: Any) -> None:
    assert seen["imported"] == []


@pytest.mark.on
def test_what_is_compiled_serves_every_worker_of_the_machine(upstream: Upstream, tmp_path: Path) -> None:
    first, second = [compiled(upstream, tmp_path) for _ in range(2)]
    assert {name: tuple(hits) for name, hits in first["entries"].items() if hits != [0, 1]} == {}
    assert {name: tuple(hits) for name, hits in second["entries"].items() if hits != [1, 0]} == {}
    assert first["beside"] == second["beside"] == []  # nothing is written into the tree


@pytest.mark.on
def test_where_nothing_can_be_kept_a_worker_compiles_for_itself(upstream: Upstream, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = compiled(upstream, tmp_path / "file")
    assert {name: tuple(hits) for name, hits in found["entries"].items() if hits != [0, 1]} == {}
    assert found["beside"] == []


def compiled(upstream: Upstream, cache: Path) -> Any:
    return upstream.run("probe_sam_compiled.py", need=["vllm-ascend"], env={"VLLM_CACHE_ROOT": str(cache)}, timeout=300)


@pytest.mark.misuse
def test_settings_out_of_range_are_refused(seen: Any) -> None:
    assert len(seen["misuse"]) == 6
    for change, said in seen["misuse"].items():
        name = change.split("'")[1]
        assert name in said
