"""sam_proposer's tables of hashed contexts: what they draft is what followed, and they are bounded.

Held against a search of every position (automaton_reference.py), against themselves, and against the suffix automaton.
"""

from __future__ import annotations

from typing import Any

import pytest
from harness import Upstream

PROBE = "probe_sam_tables.py"
BYTES_A_TOKEN = 32  # from 1,024 tokens on
# Of a token: four contexts of 16 entries each, one of them read once more, and three places of what was followed. Of the
# history: its last 8 tokens, two that are followed, at most 4 contexts that are compared, twice, and the drafts.
READS_OF_TABLES, READS_OF_HISTORY = 4 * 16 + 4, 8 + 2 * 2 + 2 * 2 * (1 + 2 + 4 + 8)


@pytest.fixture(scope="module")
def seen(upstream: Upstream) -> Any:
    return upstream.run(PROBE, need=["vllm-ascend"], timeout=300)


def assert_right(case: Any, compared: int) -> None:
    assert case["wrong"] == []
    assert case["compared"] >= compared
    assert case["used"] == 0


@pytest.mark.on
def test_drafts_are_what_followed_and_few_contexts_are_missed(seen: Any) -> None:
    assert_right(seen["searched"], 500)
    assert seen["searched"]["missed"] <= 3


@pytest.mark.on
def test_drafts_depend_on_the_tokens_and_not_on_the_steps(seen: Any) -> None:
    assert_right(seen["parts"], 80)


@pytest.mark.on
def test_a_batch_is_told_what_each_is_told_alone(seen: Any) -> None:
    assert_right(seen["together"], 400)


@pytest.mark.on
def test_nothing_is_followed_that_is_not_earlier(seen: Any) -> None:
    found = seen["followed"]
    assert found["alike"] > 2  # contexts of one line and one tag: what this is about
    assert found["ahead"] == 0


@pytest.mark.on
def test_a_history_that_is_another_one_is_built_anew(seen: Any) -> None:
    assert seen["anew"] == {"wrong": [], "used": 0}


@pytest.mark.on
def test_settings_limit_drafts(seen: Any) -> None:
    followed, of_one = [3, 4, 5, 1], [2, 3, 4, 5]
    assert seen["settings"] == {
        "limits": [0, 0, 1, 3, 4],
        "unset": followed,
        "unset, one token": of_one,
        "0": followed,
        "0, one token": of_one,
        "1": followed[:2],
        "1, one token": of_one[:1],
        "shortest": [],
        "fewer than the match": [3],
    }


@pytest.mark.on
def test_without_memory_a_request_gets_no_drafts_and_others_do(seen: Any) -> None:
    case = seen["capped"]
    assert case["told"] == [4, 4, 4, 0, 0]
    assert case["state"] == [True, False, 1, True, 0, 4, False, 4]
    assert case["used"] == [8192, 0]


@pytest.mark.on
def test_bytes_a_token_are_bounded(seen: Any) -> None:
    assert {length: size for length, size in seen["sizes"].items() if not 16 < size <= BYTES_A_TOKEN} == {}


@pytest.mark.on
def test_drafts_are_as_good_as_those_of_the_automaton(seen: Any) -> None:
    assert len(seen["steps"]) == 4
    for stream, (automaton, tables) in seen["steps"].items():
        assert automaton > 50
        assert tables <= automaton * (1.002 if "source" in stream else 1.02), stream


@pytest.mark.on
def test_a_line_is_read_as_a_loop_would_read_it(seen: Any) -> None:
    found = seen["scans"]
    assert found["known"] > 500 and found["unknown"] > 400
    assert found["wrong"] == 0


@pytest.mark.on
def test_a_step_has_a_bound_in_reads(upstream: Upstream) -> None:
    counted = upstream.run(PROBE, need=["vllm-ascend"], env={"NUMBA_DISABLE_JIT": "1"}, timeout=300)["reads"]
    assert set(counted) == {"source", "one symbol"}
    for tables, history in counted.values():
        assert 40 < tables <= READS_OF_TABLES
        assert 20 < history <= READS_OF_HISTORY


@pytest.mark.on
def test_neither_torch_nor_vllm_is_imported(seen: Any) -> None:
    assert seen["imported"] == []


@pytest.mark.misuse
def test_settings_out_of_range_are_refused(seen: Any) -> None:
    assert len(seen["misuse"]) == 8
    for change, said in seen["misuse"].items():
        assert change.split("'")[1] in said
