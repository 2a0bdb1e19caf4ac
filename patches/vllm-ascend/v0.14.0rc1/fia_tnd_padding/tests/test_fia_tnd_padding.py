"""fia_tnd_padding: FIA's lengths fit its query in every call, where a full graph holds mixed batches too.

A real engine, runner and attention on a CPU, with graphs that the stand-in captures and replays; the stand-in's FIA
refuses what CANN 8.5.0's does. Kernels and ACL graphs of an NPU are not shown.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness import Upstream
from models import TinyModels

PROBE = "probe_fia_padding.py"
NPU: dict[str, Any] = {
    "need": ["vllm-ascend", "vllm"],
    "standins": ["torch_npu", "npu_engine", "vllm-cpu-dist-info", "vllm-ascend-dist-info"],
    "env": {"VLLM_ASCEND_ENABLE_NZ": "0"},
    "timeout": 240,
}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2, "prompt_lookup_min": 1}
SIZES, MOST, LAYERS = [4, 8, 16, 32], 6, 2


def run(upstream: Upstream, models: TinyModels, mode: str, speculation: dict[str, Any] | None) -> Any:
    return upstream.run(PROBE, models.qwen3, mode, json.dumps(speculation), **NPU)


@pytest.fixture(scope="module")
def full(upstream: Upstream, tiny_models: TinyModels) -> Any:
    # Three tokens a request that has all its drafts, and no graph of a multiple of three.
    return run(upstream, tiny_models, "FULL", NGRAM | {"num_speculative_tokens": 2})


def calls(found: Any, where: str) -> list[dict[str, Any]]:
    return [call for call in found["calls"] if call["where"] == where]


def requests(call: dict[str, Any]) -> int:
    """Those that are no padding."""
    return sum(1 for length in call["keys"] if length)


def queries(call: dict[str, Any]) -> list[int]:
    """The query lengths of the requests that are no padding."""
    lengths = [end - start for start, end in zip([0, *call["ends"]], call["ends"], strict=False)]
    return lengths[: requests(call)]


def fits(call: dict[str, Any]) -> bool:
    rising = all(start <= end for start, end in zip(call["ends"], call["ends"][1:], strict=False))
    as_many = len(call["ends"]) == len(call["keys"]) and call["table"] in (None, len(call["ends"]))
    return rising and as_many and call["ends"][-1] == call["rows"]


@pytest.mark.on
def test_tokens_are_those_of_the_model(full: Any) -> None:
    assert full["refused"] is None
    assert full["tokens"] == full["hf"]


@pytest.mark.on
@pytest.mark.parametrize("where", ["eager", "capture", "update"])
def test_lengths_fit_in_every_call(full: Any, where: str) -> None:
    assert full["refused"] is None
    assert calls(full, where)
    assert [call for call in calls(full, where) if not fits(call)] == []


@pytest.mark.on
def test_replays_keep_to_the_rows_of_the_capture(full: Any) -> None:
    captured = {call["rows"]: call["table"] for call in calls(full, "capture")}
    assert captured == {size: min(size, MOST + 1) for size in SIZES}
    assert {call["rows"] for call in calls(full, "update")} <= set(captured)
    assert all(len(call["ends"]) == captured[call["rows"]] for call in calls(full, "update"))


@pytest.mark.on
def test_the_batches_are_what_is_to_be_shown(full: Any) -> None:
    assert full["refused"] is None
    updates = calls(full, "update")
    # All requests running, so that only the spare row is left for the padding.
    assert any(requests(call) == MOST and call["keys"][MOST] == 0 for call in updates)
    assert any(requests(call) < call["table"] - 1 for call in updates)
    assert any(len(set(queries(call))) > 1 for call in updates)
    assert any(call["rows"] > SIZES[-1] for call in calls(full, "eager"))


@pytest.mark.on
def test_all_layers_of_a_step_share_the_lengths(full: Any) -> None:
    assert full["refused"] is None
    updates = calls(full, "update")
    assert [updates[first::LAYERS] for first in range(LAYERS)] == [updates[::LAYERS]] * LAYERS


@pytest.mark.off
@pytest.mark.slow
@pytest.mark.parametrize("speculation", [None, NGRAM], ids=["plain", "ngram"])
def test_graphs_of_uniform_decode_are_as_before(
    upstream: Upstream, tiny_models: TinyModels, speculation: dict[str, Any] | None
) -> None:
    found = run(upstream, tiny_models, "FULL_DECODE_ONLY", speculation)
    assert found["tokens"] == found["hf"]
    assert calls(found, "update")
    assert all(fits(call) for call in found["calls"])
    drafts = 3 if speculation else 0
    assert all(call["table"] * (drafts + 1) == call["rows"] for call in calls(found, "update"))
