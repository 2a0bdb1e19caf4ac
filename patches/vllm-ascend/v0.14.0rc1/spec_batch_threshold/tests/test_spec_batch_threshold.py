"""spec_batch_threshold: speculation that pauses above a batch size, in real engines on CPU."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from harness import Upstream
from models import TinyModels

NPU: dict[str, Any] = {
    "need": ["vllm-ascend", "vllm"],
    "standins": ["torch_npu", "npu_engine", "vllm-cpu-dist-info", "vllm-ascend-dist-info"],
    "env": {"VLLM_ASCEND_ENABLE_NZ": "0"},
    "timeout": 240,
}
UPPER, LOWER = 4, 3
RANKS_UPPER, RANKS_LOWER = 5, 2
NEVER_REACHED = 100
ABORTED = "2-5"
# What the unpatched tree does with the probe's waves: requests, state (P PrefillNoCache, D DecodeOnly, C
# ChunkedPrefill), and how many drafts are verified, by step. The states of the patched tree without the setting must be
# these; this test passes on both.
UPSTREAM = (
    "3P 3D 3D 3D 3D 3C4 4C3 4C3 4C3 4C1 5C 5C 5C 5C1 6C1 6C5 6C9 6C8 5C8 5C6 6C3 6C3 6C3 5C3 5C3 6C2 6C "
    "5C3 5C3 5C1 5C3 5C8 4C9 4C6 4C11 4C9 4C9 3C6 3C6 1C3 1C3 1C3 1C3 6P 6C 6D 6D 6D 6D 6C2 6C3 6C3 6C3 "
    "6C3 4C3 4D 4D 4C6 4C3 4D 4D 4D 4C6 3D 3C9 3D 3C1 3C2 3D 7C 6D 6D 6C3 6D 5D 5D 5D 4C2 4D 4D 4D 3D 3D "
    "3D 3C3 1C3 1D 1D 1D 1D 1D 1D 1D "
)


def threshold(upper: int, lower: int) -> str:
    return json.dumps({"upper": upper, "lower": lower})


@pytest.fixture(scope="module")
def one_engine(upstream: Upstream, tiny_models: TinyModels) -> Any:
    """The same waves of requests without the setting, with one that is never reached, and with one that is."""
    settings = ["null", threshold(NEVER_REACHED, NEVER_REACHED), threshold(UPPER, LOWER)]
    return upstream.run("probe_spec_threshold.py", tiny_models.qwen3, *settings, **NPU)


@pytest.fixture(scope="module")
def ranks(upstream: Upstream, tiny_models: TinyModels) -> Any:
    script = "probe_spec_threshold_ranks.py"
    return upstream.run(script, tiny_models.qwen3_moe, threshold(RANKS_UPPER, RANKS_LOWER), procs=2, **NPU)


def drafting_after(running: list[int], upper: int, lower: int) -> list[bool]:
    """What each step leaves to the next one, by the definition; speculation is on at first."""
    on, decisions = True, []
    for number in running:
        on = False if number > upper else on or number <= lower
        decisions.append(on)
    return decisions


def switches(decisions: list[bool]) -> int:
    return sum(one != other for one, other in pairwise(decisions))


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


def assert_greedy(tokens: dict[str, list[int]], greedy: dict[str, list[int]]) -> None:
    """Token for token; of the aborted request as far as it came."""
    assert set(tokens) == set(greedy)
    for name, ids in tokens.items():
        assert ids == (greedy[name][: len(ids)] if name == ABORTED else greedy[name])


@pytest.mark.off
def test_a_runner_without_its_init_has_no_drafts(upstream: Upstream) -> None:
    assert upstream.run("probe_spec_threshold_bare.py", "npu_engine", **NPU) is None


@pytest.mark.off
def test_without_the_setting_states_and_batches_are_upstreams(one_engine: Any) -> None:
    without, unreached, _ = one_engine["runs"]
    assert [brief(step) for step in without["steps"]] == UPSTREAM.split()
    assert without["steps"] == unreached["steps"]
    assert_greedy(without["tokens"], one_engine["greedy"])


@pytest.mark.on
@pytest.mark.slow
def test_ranks_with_uneven_load_agree(ranks: Any) -> None:
    steps = [rank["steps"] for rank in ranks]
    busiest = [max(step["running"] for step in together) for together in zip(*steps, strict=True)]
    decisions = drafting_after(busiest, RANKS_UPPER, RANKS_LOWER)
    assert switches(decisions) >= 3
    for rank in steps:
        assert [step["drafting"] for step in rank] == decisions
        for before, step in zip(decisions, rank[1:], strict=False):
            assert before or step["drafts"] == 0
    # The small graph's size and the exchange of tokens are the same on all ranks: none verifies while another decodes.
    assert [step["tokens"] for step in steps[0]] == [step["tokens"] for step in steps[1]]
    assert [step["with_prefill"] for step in steps[0]] == [step["with_prefill"] for step in steps[1]]
    # One rank goes from more requests than let speculation come back to none; the others are not held up by it.
    ends = [before["running"] for before, step in pairwise(steps[1]) if step["running"] == 0 < before["running"]]
    assert max(ends) > RANKS_LOWER
    own = [drafting_after([step["running"] for step in rank], RANKS_UPPER, RANKS_LOWER) for rank in steps]
    assert own[0] != decisions and own[1] != decisions


@pytest.mark.on
@pytest.mark.slow
def test_ranks_speculate_again_and_go_on_without_requests(ranks: Any) -> None:
    for rank in ranks:
        assert {step["drafting"] for step in rank["steps"]} == {True, False}
        assert any(step["running"] == 0 for step in rank["steps"])
        assert rank["tokens"] == rank["greedy"]
    # The second rank's requests outlast the first one's wave, and are drafted for before and after it.
    steps = ranks[1]["steps"]
    off = next(at for at, step in enumerate(steps) if step["drafting"] is False)
    assert sum(step["drafts"] for step in steps[:off]) > 0
    assert sum(step["drafts"] for step in steps[off + 1 :]) > 0


@pytest.mark.on
@pytest.mark.slow
def test_a_request_that_waits_for_its_turn_loses_its_drafts(ranks: Any) -> None:
    # The second rank is told to pause in a step in which one of its requests waited for tokens, with drafts of its own.
    steps = ranks[1]["steps"]
    off = next(at for at, step in enumerate(steps) if step["drafting"] is False)
    assert steps[off]["waiting_with_drafts"] > 0
    assert (steps[off + 1]["running"], steps[off + 1]["drafts"]) == (5, 0)


@pytest.fixture(scope="module")
def eagle(upstream: Upstream, tiny_models: TinyModels) -> Any:
    script = "probe_spec_threshold_eagle.py"
    return upstream.run(script, tiny_models.qwen3, "null", threshold(4, 2), **NPU)


@pytest.mark.on
@pytest.mark.slow
def test_eagles_head_runs_while_its_drafts_are_not_used(eagle: Any) -> None:
    without, with_pause = eagle["runs"]
    steps = with_pause["steps"]
    decisions = drafting_after([step["running"] for step in steps], 4, 2)
    assert switches(decisions) == 2
    paused = [step for before, step in zip(decisions, steps[1:], strict=False) if not before]
    assert all(step["drafts"] == 0 for step in paused)
    assert any(step["prefill"] for step in paused)
    off = decisions.index(False)
    assert sum(step["drafts"] for step in steps[off + len(paused) + 1 :]) > 0
    # The head's cache holds all tokens: what it proposes at each place is what it does without a pause.
    assert with_pause["proposed"] == without["proposed"]
    assert with_pause["tokens"] == without["tokens"]


@pytest.mark.misuse
@pytest.mark.slow
def test_asynchronous_scheduling_is_refused(eagle: Any) -> None:
    assert "asynchronous scheduling is on: set async_scheduling=False" in eagle["asynchronous"]


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
    cases += [
        ({"threshold": good}, here + "there is no speculative_config"),
        ({"threshold": good, "pipeline_parallel_size": 2, **speculation}, here + "it has not been tried with pipeline"),
        ({"threshold": good, "recurrent": True, **speculation}, here + "the model has recurrent layers"),
        ({"threshold": good, **speculation}, None),
        ({"threshold": {"upper": 8, "lower": 8}, **speculation}, None),
        ({"threshold": None}, None),
    ]
    script = "probe_spec_threshold_config.py"
    answers = upstream.run(script, tiny_models.qwen3, *(json.dumps(case) for case, _ in cases), **NPU)
    for (case, expected), answer in zip(cases, answers, strict=True):
        assert (answer is None) == (expected is None), (case, answer)
        assert answer is None or expected is None or expected in answer, (case, answer)
