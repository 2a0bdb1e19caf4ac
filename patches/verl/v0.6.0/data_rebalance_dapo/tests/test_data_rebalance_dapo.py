"""data_rebalance_dapo: the DAPO recipe's own training loop spreads samples too, in its dynamic sampling as well."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from harness import Upstream
from models import TinyModels

PROBE = "probe_rebalance_dapo.py"
GROUPED = [[[4 * batch + prompt] * 3 for prompt in range(4)] for batch in range(2)]


@pytest.fixture(scope="module")
def results(upstream: Upstream, tiny_models: TinyModels) -> Any:
    return upstream.run(PROBE, tiny_models.qwen3, need=["verl"], timeout=300)


@pytest.mark.on
@pytest.mark.parametrize(("case", "batches"), [("plain", 1), ("dynamic", 2)])
def test_no_two_samples_of_a_prompt_share_an_engine(results: Any, case: str, batches: int) -> None:
    sent = results[f"{case}_on"]["sent"]
    assert len(sent) == batches
    assert all(max(Counter(engine).values()) == 1 for call in sent for engine in call)


@pytest.mark.on
@pytest.mark.parametrize("case", ["plain", "dynamic"])
def test_every_field_has_upstreams_order_after_generation(results: Any, case: str) -> None:
    ours, theirs = results[f"{case}_on"], results[case]
    assert ours["trained"] == theirs["trained"]
    assert {"responses", "sample", "mask3d", "non_tensor.label", "non_tensor.uid"} <= set(ours["trained"][0])
    for name in ("calls", "metrics", "model"):
        assert ours[name] == theirs[name]


@pytest.mark.on
def test_dynamic_sampling_keeps_the_same_prompts(results: Any) -> None:
    """Prompts 1, 3 of the first generation batch and 5, 7 of the second, each with its three samples in order."""
    rows = {batch: [4 * j + i for i in (1, 3) for j in range(3)] for batch in range(2)}
    assert results["dynamic_on"]["places"] == [rows[0] + rows[1]]


@pytest.mark.on
def test_the_recipes_megatron_configuration_has_the_field(results: Any) -> None:
    assert results["megatron_config"] is True


@pytest.mark.off
def test_without_the_switch_engines_get_whole_prompts(results: Any) -> None:
    assert results["plain"]["sent"] == GROUPED[:1]
    assert results["dynamic"]["sent"] == GROUPED
    assert results["dynamic"]["calls"] == ["generate_sequences"] * 2 + ["compute_log_prob", "update_actor"]


@pytest.mark.off
def test_remax_with_three_samples_fails_upstream(results: Any) -> None:
    assert results["remax"]["refused"] == "AssertionError"
    assert "torch.Size([4]) and torch.Size([12])" in results["remax"]["message"]


@pytest.mark.misuse
@pytest.mark.parametrize("setting", ["async", "remax", "skip_rollout"])
def test_refused_before_any_worker_starts(results: Any, setting: str) -> None:
    refused = results["refused"][setting]
    assert refused["refused"] == "ValueError"
    assert refused["message"].startswith("actor_rollout_ref.rollout.data_rebalance")


@pytest.mark.misuse
def test_a_trainer_that_spreads_nothing_refuses_the_switch_before_ray(results: Any) -> None:
    said = results["spin"]["on"]
    assert said["refused"] == "ValueError", said
    assert said["message"] == (
        "RaySPINTrainer.fit_dpo (recipe.spin.spin_trainer) does not spread samples; "
        "set actor_rollout_ref.rollout.data_rebalance=False"
    )


@pytest.mark.off
def test_a_trainer_that_spreads_nothing_starts_as_before(results: Any) -> None:
    assert results["spin"]["off"] == {"refused": "ConnectionError", "message": "came to Ray"}
