"""dataproto_concat: ranks whose timings differ are collected; every other key of meta_info must still be equal."""

from __future__ import annotations

from typing import Any

import pytest
from harness import Upstream

PROBE = "probe_dataproto_concat.py"


@pytest.fixture(scope="module")
def results(upstream: Upstream) -> Any:
    return upstream.run(PROBE, need=["verl"])


@pytest.mark.on
def test_timing_of_the_slowest_rank_is_kept(results: Any) -> None:
    out = results["timing_of_three_ranks"]
    assert out["rows"] == [0, 1, 2, 3, 4, 5]
    assert out["meta_info"] == {
        "step": 7,
        "timing": {
            "generate_sequences": 2.5,
            "generation_timing/min": 1.0,
            "reshard": {"send": 0.5},
            "only_here": 3.0,
        },
    }
    assert out["inputs"] == [1.5, 2.5, 2.0], "the ranks' own batches are left as they were"


@pytest.mark.on
def test_trainer_logs_numbers(results: Any) -> None:
    logged = results["what_the_trainer_logs"]
    assert logged["timing_s/gen"] == 2.0
    assert logged["timing_per_token_ms/gen"] == 2.0 * 1000 / 20
    assert logged["timing_s/ref"] == 4.0
    assert all(isinstance(value, float) for value in logged.values())


@pytest.mark.on
def test_rank_without_timing_changes_nothing(results: Any) -> None:
    assert results["one_rank_without_timing"] == {
        "absent": {"timing": {"gen": 1.0}},
        "none": {"timing": {"gen": 1.0}},
        "all_none": {"timing": None},
        "single": {"timing": {"gen": 1.0}},
    }


@pytest.mark.off
def test_other_keys_stay_strict(results: Any) -> None:
    def conflict(key: str) -> dict[str, str]:
        return {"refused": "AssertionError", "message": f"Conflicting values for meta_info key '{key}'"}

    assert results["other_keys"] == {
        "conflict": conflict("temperature"),
        "conflict_by_little": conflict("global_steps"),
        "conflict_nested": conflict("sampling"),
        "similar_name": conflict("timing_s"),
        "equal": {"eos_token_id": [1, 2]},
        "on_one_rank": {"a": 1, "b": 2},
        "metrics": {"metrics": {"loss": [1.0, 2.0]}},
        # Upstream's comparison of arrays raises before it can say which key; not ours to change.
        "tensor": "RuntimeError",
        "array": "ValueError",
    }


@pytest.mark.off
def test_equal_timings_are_as_upstream(results: Any) -> None:
    assert results["equal_timing"] == {"timing": {"gen": 1.0, "generation_timing/min": 0.5, "name": "rollout"}}
