"""What the tests of spec_batch_threshold share: the engine's stand-ins, and what a threshold decides by its definition."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

NPU: dict[str, Any] = {
    "need": ["vllm", "vllm-ascend"],
    "standins": [
        "vllm-cpu-dist-info", "vllm-ascend-dist-info", "torch_npu", "npu_engine", "npu_engine_0_23", "npu_experts_0_23",
        "torchvision",
    ],
    "env": {"VLLM_ASCEND_ENABLE_NZ": "0"},
    "timeout": 600,
}  # fmt: skip
UPPER, LOWER = 4, 3
ABORTED = "2-5"


def threshold(upper: int, lower: int) -> str:
    return json.dumps({"upper": upper, "lower": lower})


def drafting_after(running: list[int], upper: int, lower: int) -> list[bool]:
    """What each step leaves to the next one, by the definition; speculation is on at first."""
    on, decisions = True, []
    for number in running:
        on = False if number > upper else on or number <= lower
        decisions.append(on)
    return decisions


def switches(decisions: list[bool]) -> int:
    return sum(one != other for one, other in pairwise(decisions))


def drafts_by_phase(decisions: list[bool], steps: list[dict[str, Any]]) -> list[int]:
    """Drafts verified in each stretch of steps during which speculation is on."""
    phases: list[int] = []
    was_on = False
    for on, step in zip(decisions, steps[1:], strict=False):
        if on and not was_on:
            phases.append(0)
        if on:
            phases[-1] += sum(step["drafts"])
        was_on = on
    return phases


def assert_greedy(tokens: dict[str, list[int]], greedy: dict[str, list[int]]) -> None:
    """Token for token; of the aborted request as far as it came."""
    assert set(tokens) == set(greedy)
    for name, ids in tokens.items():
        assert ids == (greedy[name][: len(ids)] if name == ABORTED else greedy[name])
