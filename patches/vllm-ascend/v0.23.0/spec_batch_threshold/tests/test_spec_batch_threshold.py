"""spec_batch_threshold: speculation that pauses above a batch size, in real engines on CPU."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness import Upstream
from models import TinyModels
from thresholds import LOWER, NPU, UPPER, assert_greedy, drafting_after, drafts_by_phase, switches, threshold

NEVER_REACHED = 100
SAM = "vllm_ascend.spec_decode.sam_proposer.SamProposer"
# What the unpatched tree does with the probe's waves: requests, state (P PrefillNoCache, D DecodeOnly, C
# ChunkedPrefill), and how many drafts are verified, by step. The states of the patched tree without the setting must be
# these; this test passes on both.
UPSTREAM = (
    "3P 3D 3D 3D 3D 3C4 4C3 4C3 4C3 4C1 5C 5C 5C 5C1 6C1 6C5 6C9 6C8 5C8 5C6 6C3 6C3 6C3 5C3 5C3 6C2 6C "
    "5C3 5C3 5C1 5C3 5C8 4C9 4C6 4C11 4C9 4C9 3C6 3C6 1C3 1C3 1C3 1C3 6P 6C 6D 6D 6D 6D 6C2 6C3 6C3 6C3 "
    "6C3 4C3 4D 4D 4C6 4C3 4D 4D 4D 4C6 3D 3C9 3D 3C1 3C2 3D 7C 6D 6D 6C3 6D 5D 5D 5D 4C2 4D 4D 4D 3D 3D "
    "3D 3C3 1C3 1D 1D 1D 1D 1D 1D 1D "
)


@pytest.fixture(scope="module")
def one_engine(upstream: Upstream, tiny_models: TinyModels) -> Any:
    """The same waves of requests without the setting, with one that is never reached, and with one that is."""
    settings = ["null", threshold(NEVER_REACHED, NEVER_REACHED), threshold(UPPER, LOWER)]
    return upstream.run("probe_spec_threshold.py", tiny_models.qwen3, "ngram", *settings, **NPU)


def brief(step: dict[str, Any]) -> str:
    return f"{step['running']}{step['state'][0]}{sum(step['drafts']) or ''}"


@pytest.mark.on
def test_no_drafts_above_and_drafts_below(one_engine: Any) -> None:
    steps = one_engine["runs"][2]["steps"]
    decisions = drafting_after([step["running"] for step in steps], UPPER, LOWER)
    assert switches(decisions) >= 5
    for before, step in zip(decisions, steps[1:], strict=False):
        assert before or step["drafts"] == []
    # Between the two numbers the step before decides: without hysteresis there would be drafts, or none.
    between = [on for on, step in zip(decisions, steps, strict=True) if LOWER < step["running"] <= UPPER]
    assert set(between) == {True, False}
    phases = drafts_by_phase(decisions, steps)
    assert sum(drafted > 0 for drafted in phases) >= 3
    assert sum(step["accepted"] for step in steps) > 0


@pytest.mark.on
def test_steps_without_drafts_are_plain_decode(one_engine: Any) -> None:
    steps = one_engine["runs"][2]["steps"]
    plain = [step for step in steps if set(step["scheduled"]) == {1}]
    assert {(step["state"], step["with_prefill"]) for step in plain} == {("DecodeOnly", False)}
    assert max(step["running"] for step in plain) > UPPER
    # Nothing of earlier drafts is left where the sampler looks for them, nor where the scheduler is told of new ones.
    assert all(step["held"] == sum(step["drafts"]) for step in steps)
    decisions = drafting_after([step["running"] for step in steps], UPPER, LOWER)
    assert [step["proposed"] for step in steps] == decisions


@pytest.mark.on
def test_tokens_are_greedy_and_no_draft_is_stale(one_engine: Any) -> None:
    run = one_engine["runs"][2]
    assert max(step["running"] for step in run["steps"]) > UPPER
    assert sum(step["preempted"] for step in run["steps"]) > 0
    assert sum(step["foreign"] for step in run["steps"]) == 0
    assert_greedy(run["tokens"], one_engine["greedy"])
    assert drafting_after([step["running"] for step in run["steps"]], UPPER, LOWER).count(False) > 0
    above = [step for step in run["steps"] if step["running"] > UPPER + 1]
    assert all(step["drafts"] == [] for step in above)


@pytest.mark.off
def test_a_runner_without_its_init_has_no_drafts(upstream: Upstream) -> None:
    assert upstream.run("probe_spec_threshold_bare.py", "npu_engine_0_23", **NPU) is None


@pytest.mark.off
def test_without_the_setting_states_and_batches_are_upstreams(one_engine: Any) -> None:
    without, unreached, _ = one_engine["runs"]
    assert [brief(step) for step in without["steps"]] == UPSTREAM.split()
    assert without["steps"] == unreached["steps"]
    assert_greedy(without["tokens"], one_engine["greedy"])


@pytest.mark.misuse
def test_wrong_values_and_engines_are_refused(upstream: Upstream, tiny_models: TinyModels) -> None:
    ngram = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2, "prompt_lookup_min": 1}
    speculation = {"speculative_config": ngram}
    good = {"upper": 8, "lower": 4}
    form = "additional_config: spec_batch_threshold must be"
    here = "additional_config: spec_batch_threshold cannot be used here: "
    wrong: list[Any] = [8, True, {}, {"upper": 8}, {"upper": 4, "lower": 8}, {"upper": 8, "lower": 0}]
    wrong += [{"upper": "8", "lower": 4}, {"upper": 8.0, "lower": 4}, {"upper": 8, "lower": True}, good | {"more": 1}]
    cases: list[tuple[dict[str, Any], str | None]] = [({"threshold": one, **speculation}, form) for one in wrong]
    own = {"method": "custom_class", "model": "proposers.Own", "num_speculative_tokens": 2}
    gpu = {"speculative_config": ngram | {"method": "ngram_gpu"}}
    cases += [
        ({"threshold": good}, here + "there is no speculative_config"),
        ({"threshold": good, "speculative_config": own | {"model": SAM}}, None),
        ({"threshold": good, "speculative_config": own}, here + "it has been tried with eagle, ngram, vllm_ascend."),
        ({"threshold": good, **gpu}, "SamProposer alone, not with ngram_gpu: leave it out"),
        (  # a model's name is no method
            {"threshold": good, "speculative_config": gpu["speculative_config"] | {"model": "ngram"}},
            "not with ngram_gpu: leave it out",
        ),
        ({"threshold": good, "pipeline_parallel_size": 2, **speculation}, here + "it has not been tried with pipeline"),
        ({"threshold": good, "recurrent": True, **speculation}, here + "the model has recurrent layers"),
        (
            {"threshold": good, "role": "kv_consumer", "data_parallel_size": 2, **speculation},
            here + "data parallel ranks",
        ),
        ({"threshold": good, "role": "kv_producer", "data_parallel_size": 2, **speculation}, None),
        ({"threshold": good, "role": "kv_consumer", **speculation}, None),
        ({"threshold": good, **speculation}, None),
        ({"threshold": {"upper": 8, "lower": 8}, **speculation}, None),
        ({"threshold": None}, None),
        ({"threshold": None, **gpu}, None),
    ]
    script = "probe_spec_threshold_config.py"
    answers = upstream.run(script, tiny_models.qwen3, *(json.dumps(case) for case, _ in cases), **NPU)
    for (case, expected), answer in zip(cases, answers, strict=True):
        assert (answer is None) == (expected is None), (case, answer)
        assert answer is None or expected is None or expected in answer, (case, answer)
