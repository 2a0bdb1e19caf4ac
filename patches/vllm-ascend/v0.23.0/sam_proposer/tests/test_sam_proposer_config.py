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
DEFAULTS = {"min_match_length": 1, "max_drafts_per_match": 2, "share_in_group": False, "max_memory_mb": 1024}
SET = {"min_match_length": 5, "max_drafts_per_match": 0, "share_in_group": True, "max_memory_mb": 64}
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


def outcomes(upstream: Upstream, models: TinyModels, cases: dict[str, dict[str, Any]]) -> Any:
    return upstream.run(PROBE, models.qwen3, json.dumps(cases), **NPU)


@pytest.fixture(scope="module")
def taken(upstream: Upstream, tiny_models: TinyModels) -> Any:
    cases = {
        "plain": given(SAM),
        "no words": given(SAM, {}),
        "all set": given(SAM, SET),
        "command line": given(SAM, SET) | {"on the command line": True},
        "without": given(None),
        "ngram": given(NGRAM),
        "other": given(OTHER),
    }
    return outcomes(upstream, tiny_models, cases)


@pytest.fixture(scope="module")
def refused(upstream: Upstream, tiny_models: TinyModels) -> Any:
    cases = {f"{name} {value!r}": given(SAM, {name: value}) for name, values in WRONG.items() for value in values}
    cases |= {repr(settings): given(SAM, settings) for settings in NO_SETTINGS}
    cases |= {name: given(speculative, SET) for name, speculative in ELSEWHERE.items()}
    cases |= {"async": given(SAM, async_scheduling=True), "method sam": given(SAM | {"method": "sam"})}
    cases["no number"] = given({name: SAM[name] for name in ("method", "model")})
    return outcomes(upstream, tiny_models, cases)


@pytest.mark.on
def test_settings_are_those_of_additional_config(taken: Any) -> None:
    assert taken["plain"]["sam"] == taken["no words"]["sam"] == DEFAULTS
    assert taken["all set"]["sam"] == SET
    assert taken["command line"] == taken["all set"]


@pytest.mark.on
def test_experts_keep_their_fused_dispatch(taken: Any) -> None:
    assert {name: taken[name]["fused dispatch"] for name in ("without", "ngram", "plain", "other")} == {
        "without": True, "ngram": True, "plain": True, "other": False,
    }  # fmt: skip


@pytest.mark.off
def test_others_are_as_before(taken: Any) -> None:
    assert (taken["without"]["method"], taken["without"]["async"]) == (None, True)
    assert (taken["ngram"]["method"], taken["ngram"]["async"]) == ("ngram", False)
    for name in ("without", "ngram", "other"):
        assert taken[name].get("sam") is None


@pytest.mark.misuse
def test_a_wrong_value_is_refused(refused: Any) -> None:
    for name, values in WRONG.items():
        for value in values:
            answer = refused[f"{name} {value!r}"]
            assert answer.get("value_error"), (name, value)
            assert f"sam_config's {name} must be of type" in answer["error"]
            assert f"not {value!r}" in answer["error"]


@pytest.mark.misuse
def test_what_is_no_dictionary_of_settings_is_refused(refused: Any) -> None:
    for settings in NO_SETTINGS:
        answer = refused[repr(settings)]
        assert answer.get("value_error"), settings
        assert "sam_config must be a dictionary with some of ['min_match_length'" in answer["error"]


@pytest.mark.misuse
def test_settings_are_refused_where_it_does_not_draft(refused: Any) -> None:
    for name in ELSEWHERE:
        answer = refused[name]
        assert answer.get("value_error"), name
        assert f"sam_config belongs to speculative_config's model {SAM['model']!r}" in answer["error"]


@pytest.mark.misuse
def test_what_vllm_refuses_of_it(taken: Any, refused: Any) -> None:
    assert taken["plain"]["method"] == "custom_class"
    assert taken["plain"]["async"] is False
    assert "async scheduling is only supported" in refused["async"]["error"]
    assert "num_speculative_tokens must be provided" in refused["no number"]["error"]
    assert "Input should be 'ngram'" in refused["method sam"]["error"]
