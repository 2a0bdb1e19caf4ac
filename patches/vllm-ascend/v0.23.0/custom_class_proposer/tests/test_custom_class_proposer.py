"""custom_class_proposer: vllm's speculative method `custom_class` in real engines with vllm-ascend's model runner."""

from __future__ import annotations

from typing import Any

import pytest
from harness import Upstream
from models import TinyModels

PROBE = "probe_custom_class.py"
ENGINE: dict[str, Any] = {
    "need": ["vllm", "vllm-ascend"],
    "standins": [
        "vllm-cpu-dist-info", "vllm-ascend-dist-info", "torch_npu", "npu_engine", "npu_engine_0_23", "torchvision",
    ],
    "env": {"VLLM_ASCEND_ENABLE_NZ": "0"},
    "timeout": 600,
}  # fmt: skip
CASES = ["hf", "plain", "ngram", "Lookup", "Knowing", "Unable", "Missing", "TooMany", "RowMissing"]


@pytest.fixture(scope="module")
def seen(upstream: Upstream, tiny_models: TinyModels) -> Any:
    return upstream.run(PROBE, tiny_models.qwen3, *CASES, **ENGINE)


def of(seen: Any, case: str) -> Any:
    assert "error" not in seen[case], seen[case]
    return seen[case]


@pytest.mark.on
@pytest.mark.parametrize("name", ["Lookup", "Knowing"])
def test_its_drafts_are_verified_and_tokens_are_hugging_faces(seen: Any, name: str) -> None:
    run = of(seen, name)
    assert run["drafter"] == "AscendCustomClassProposer"
    assert run["drafted"] > run["accepted"] > 10
    assert run["tokens"] == seen["hf"]["tokens"]
    assert run["mappings"] == []


@pytest.mark.on
def test_the_class_is_made_once(seen: Any) -> None:
    assert of(seen, "Lookup")["made"] == 1


@pytest.mark.on
def test_it_is_given_the_model_and_the_runner_where_it_takes_them(seen: Any) -> None:
    knowing = of(seen, "Knowing")
    assert knowing["model"]
    assert knowing["runner"]
    assert knowing["compared"]["sampled"] > 50
    assert knowing["compared"]["waiting"] > 0
    assert knowing["wrong"] == []


@pytest.mark.off
def test_other_methods_are_as_before(seen: Any) -> None:
    assert of(seen, "plain")["tokens"] == of(seen, "ngram")["tokens"] == seen["hf"]["tokens"]
    assert (seen["plain"]["drafter"], seen["ngram"]["drafter"]) == ("NoneType", "AscendNgramProposer")
    assert seen["ngram"]["accepted"] > 0


@pytest.mark.misuse
def test_what_is_no_proposer_is_refused(seen: Any) -> None:
    assert "must have a 'propose' method" in seen["Unable"]["error"]
    assert "has no attribute 'Missing'" in seen["Missing"]["error"]
    assert seen["Unable"]["loaded"] == seen["Missing"]["loaded"] == []
    assert "TooMany.propose must return" in seen["TooMany"]["error"]
    assert "lists of at most num_speculative_tokens (3) tokens" in seen["TooMany"]["error"]
    assert "RowMissing.propose must return" in seen["RowMissing"]["error"]
