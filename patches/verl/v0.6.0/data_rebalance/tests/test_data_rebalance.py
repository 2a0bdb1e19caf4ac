"""data_rebalance: the samples of a prompt go to different engines, and the batch comes back in upstream's order."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from harness import Upstream
from models import TinyModels

PROBE = "probe_rebalance.py"
KEY = "actor_rollout_ref.rollout.data_rebalance"
# Four prompts a step, three samples each, four engines: what upstream sends, step by step.
GROUPED = [[[4 * step + prompt] * 3 for prompt in range(4)] for step in range(2)]


@pytest.fixture(scope="module")
def results(upstream: Upstream, tiny_models: TinyModels) -> Any:
    return upstream.run(PROBE, tiny_models.qwen3, need=["verl"], timeout=300)


def times_on_each_engine(sent: list[list[int]], prompts: int = 4) -> set[int]:
    """How often a prompt occurs on an engine, over all prompts and engines."""
    counts = [Counter(engine) for engine in sent]
    return {count[prompt] for count in counts for prompt in range(prompts)}


@pytest.mark.on
def test_no_two_samples_of_a_prompt_share_an_engine(results: Any) -> None:
    for name in ("4x4", "8x4", "4x3tp2"):
        assert times_on_each_engine(results["spread"][name]) <= {0, 1}, name
    for sent in results["switched_on"]["sent"]:
        assert all(max(Counter(engine).values()) == 1 for engine in sent)


@pytest.mark.on
def test_fewer_engines_than_samples_share_them_evenly(results: Any) -> None:
    assert times_on_each_engine(results["spread"]["2x4"]) == {2}
    assert times_on_each_engine(results["spread"]["2x3"]) == {1, 2}
    assert times_on_each_engine(results["spread"]["4x5"]) == {1, 2}


@pytest.mark.on
def test_every_field_has_upstreams_order_after_generation(results: Any) -> None:
    for ours, theirs in zip(results["switched_on"]["trained"], results["upstream_order"]["trained"], strict=True):
        assert ours == theirs
        # The fields that only generation makes: one column, three dimensions, objects.
        assert {"responses", "sample", "mask3d", "non_tensor.label", "non_tensor.uid", "advantages"} <= set(ours)
    assert results["upstream_order"]["places"] == [list(range(12))] * 2
    # Sample j of prompt i was generated as number 4 j + i, and stands at 3 i + j.
    assert results["switched_on"]["places"] == [[4 * j + i for i in range(4) for j in range(3)]] * 2


@pytest.mark.on
def test_training_gives_the_same_weights_and_metrics(results: Any) -> None:
    for name in ("calls", "metrics", "model"):
        assert results["switched_on"][name] == results["upstream_order"][name]


@pytest.mark.on
def test_balance_batch_and_dumps_see_upstreams_order(results: Any) -> None:
    assert results["balanced_on"]["trained"] == results["balanced"]["trained"]
    assert results["balanced_on"]["sent"] != results["balanced"]["sent"]
    assert results["dumped_on"] == results["dumped"]
    assert len(results["dumped_on"]) == 12


@pytest.mark.on
def test_validation_is_left_alone(results: Any) -> None:
    (validation, training), (ours, trained) = results["validated"], results["validated_on"]
    assert ours == validation == [[0, 0, 1, 1], [2, 2, 3, 3], [4, 4, 5, 5], [6, 6, 7, 7]]
    assert trained != training


@pytest.mark.on
def test_remax_with_one_sample_is_as_upstream(results: Any) -> None:
    assert results["remax_one_on"] == results["remax_one"]
    assert results["remax_one_on"]["calls"][:2] == ["generate_sequences"] * 2
    assert "reward_baselines" in results["remax_one_on"]["trained"][0]


@pytest.mark.on
def test_field_is_set_from_the_command_line(results: Any) -> None:
    assert results["composed"] == {
        f"{name}{key}": [value, value]
        for name in ("ppo_trainer", "ppo_megatron_trainer")
        for key, value in (("", False), (" True", True), (" False", False))
    }
    assert results["generated_yaml"] == [False, False]


@pytest.mark.on
def test_switched_off_it_is_as_without(results: Any) -> None:
    assert results["explicitly_off"] == results["upstream_order"]


@pytest.mark.on
def test_orders_are_each_others_inverse_for_many_sizes(results: Any) -> None:
    assert results["orders"] == [], "(prompts, samples[, engines]) for which an order is wrong or uneven"


@pytest.mark.on
def test_rows_whose_order_is_unknown_are_not_guessed(results: Any) -> None:
    lost, not_whole = results["rows_lost"]["lost"], results["rows_lost"]["not_whole"]
    assert lost["refused"] == "RuntimeError" and "6 rows were sent to the engines and 5 came back" in lost["message"]
    assert (
        not_whole["refused"] == "ValueError" and "no multiple of actor_rollout_ref.rollout.n=4" in not_whole["message"]
    )


@pytest.mark.off
def test_without_the_switch_engines_get_whole_prompts(results: Any) -> None:
    assert results["upstream_order"]["sent"] == GROUPED
    assert results["upstream_order"]["calls"] == ["generate_sequences", "compute_log_prob", "update_actor"] * 2


@pytest.mark.off
def test_remax_with_two_samples_fails_upstream(results: Any) -> None:
    """fit repeats gen_batch before the baseline copies it: 8 rows meet a batch of 4."""
    assert results["remax_two"]["refused"] == "AssertionError"
    assert "torch.Size([4]) and torch.Size([8])" in results["remax_two"]["message"]


@pytest.mark.off
def test_without_the_switch_nothing_is_refused(results: Any) -> None:
    assert results["accepted_when_off"] == {"async": True, "remax": True, "skip_rollout": True}


@pytest.mark.off
def test_async_rollout_spreads_grouped_samples_itself(results: Any) -> None:
    """Why mode=async is refused: requests go round the servers, and a trace's rollout_n counts equal neighbours."""
    assert results["asynchronous"] == {
        "servers_a_prompt": [2, 2, 2, 2],
        "requests_a_server": [2, 2, 2, 2],
        "traced_grouped": [0, 1] * 4,
        "traced_tiled": [0] * 8,
    }


@pytest.mark.misuse
@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("async", "set actor_rollout_ref.rollout.data_rebalance=False"),
        ("remax", "needs actor_rollout_ref.rollout.n=1"),
        ("skip_rollout", "actor_rollout_ref.rollout.skip_rollout=True; set one to False"),
        ("text", "'on' is neither True nor False"),
        ("number", "1 is neither True nor False"),
        ("OwnFit", "OwnFit.fit (__main__) does not spread samples; set actor_rollout_ref.rollout.data_rebalance=False"),
        ("OwnDataloader", "OwnFit.fit (__main__) does not spread samples"),
        ("OwnInit", "OwnFit.fit (__main__) does not spread samples"),
    ],
)
def test_refused_before_any_worker_starts(results: Any, setting: str, says: str) -> None:
    refused = results["refused"][setting]
    assert refused["refused"] == "ValueError"
    assert says in refused["message"] and KEY in refused["message"]
