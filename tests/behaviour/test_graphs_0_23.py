"""Captured graphs in the engine of vllm-ascend 0.23, with drafts and without: what is replayed, and that tokens stay right."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness import Upstream
from models import TinyModels
from test_experts_0_23 import EXPERTS

SIZES = [1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 28, 32]
DRAFTS = 3
NGRAM = {"method": "ngram", "num_speculative_tokens": DRAFTS, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
SAM = {
    "method": "custom_class",
    "model": "vllm_ascend.spec_decode.sam_proposer.SamProposer",
    "num_speculative_tokens": DRAFTS,
}
# So that requests have drafts of different number.
FEW = {"additional_config": {"sam_config": {"max_drafts_per_match": 2}}}
PAUSED = {"additional_config": {"spec_batch_threshold": {"upper": 2, "lower": 2}}}  # three requests run at first


@pytest.fixture(autouse=True)
def _trees_of_the_set(upstream: Upstream) -> None:
    upstream.skip_unless("vllm-ascend", ">=0.23")


def run(
    upstream: Upstream, model: Any, mode: str, requests: int = 3, **settings: Any
) -> tuple[list[list[int]], list[int]]:
    """Of each step behind the prompts its requests' tokens, and of each replay its graph's tokens; the engine's are compared."""
    settings["compilation_config"] = {"cudagraph_mode": mode, "cudagraph_capture_sizes": SIZES}
    options = EXPERTS | {"standins": [*EXPERTS["standins"], "npu_graphs_0_23"]}
    engine = "npu_experts_0_23" if model.name.endswith("moe") else "npu_engine_0_23"
    made = upstream.run("probe_graphs_0_23.py", model, json.dumps(settings), engine, requests, **options)
    assert made["tokens"] == made["hf"]
    return made["steps"][1:], made["replayed"]


@pytest.mark.parametrize("mode", ["FULL_DECODE_ONLY", "FULL"])
@pytest.mark.parametrize("model", ["qwen3", "qwen3_moe"])
def test_each_decode_step_is_replayed(upstream: Upstream, tiny_models: TinyModels, model: str, mode: str) -> None:
    steps, replayed = run(upstream, getattr(tiny_models, model), mode)
    assert steps == [[1, 1, 1]] * len(steps)
    assert replayed == [3] * len(steps)


@pytest.mark.parametrize("drafter, settings", [(NGRAM, {}), (SAM, FEW)], ids=["ngram", "sam"])
def test_full_graphs_take_steps_with_some_drafts(
    upstream: Upstream, tiny_models: TinyModels, drafter: Any, settings: Any
) -> None:
    steps, replayed = run(upstream, tiny_models.qwen3, "FULL", speculative_config=drafter, **settings)
    assert {len(set(one)) for one in steps} == {1, 2, 3}, "no step in which requests have drafts of different number"
    # vllm captures sizes of whole requests with all their drafts alone.
    assert replayed == [-(-sum(one) // (1 + DRAFTS)) * (1 + DRAFTS) for one in steps]


def test_a_full_batch_is_padded_in_larger_graphs(upstream: Upstream, tiny_models: TinyModels) -> None:
    """The request that pads has a place behind max_num_seqs others too, which is what fia_tnd_padding does on v0.14.0rc1."""
    steps, replayed = run(upstream, tiny_models.qwen3, "FULL", requests=8, speculative_config=NGRAM)
    padded = [sum(one) for one, size in zip(steps, replayed, strict=True) if len(one) == 8 and size > sum(one)]
    assert len(padded) > 2


def test_full_graphs_take_steps_of_a_pause(upstream: Upstream, tiny_models: TinyModels) -> None:
    steps, replayed = run(upstream, tiny_models.qwen3, "FULL", speculative_config=SAM, **PAUSED)
    assert steps == [[1, 1, 1]] * len(steps)
    assert replayed == [1 + DRAFTS] * len(steps)


def test_full_decode_only_takes_no_step_where_drafts_are_made(upstream: Upstream, tiny_models: TinyModels) -> None:
    """Why a run with drafts wants FULL: these graphs are of 1 + DRAFTS tokens for each request."""
    steps, replayed = run(upstream, tiny_models.qwen3, "FULL_DECODE_ONLY", speculative_config=NGRAM)
    assert not any(all(tokens == 1 + DRAFTS for tokens in one) for one in steps)
    assert replayed == []
