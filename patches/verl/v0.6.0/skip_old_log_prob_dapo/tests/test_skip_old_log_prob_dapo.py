"""skip_old_log_prob_dapo: recipe/dapo's trainer, which git's tree has and the sdist has not, skips the same pass."""

from __future__ import annotations

from typing import Any

import pytest
from harness import Upstream
from models import TinyModels
from skipped_pass import SWITCH, one_pass_less, same_step

PROBE = "probe_skip_dapo.py"
CASES = ["plain", "entropy_and_kl_loss", "filtered"]


@pytest.fixture(scope="module")
def dapo(upstream: Upstream, tiny_models: TinyModels) -> Any:
    return upstream.run(PROBE, tiny_models.qwen3, "on", need=["verl"], timeout=300)


@pytest.fixture(scope="module")
def dapo_off(upstream: Upstream, tiny_models: TinyModels) -> Any:
    return upstream.run(PROBE, tiny_models.qwen3, "off", need=["verl"], timeout=300)


@pytest.mark.on
@pytest.mark.parametrize("name", CASES)
def test_step_is_the_same_with_one_pass_less(dapo: Any, name: str) -> None:
    same_step(dapo["runs"][name])
    one_pass_less(dapo["runs"][name])


@pytest.mark.on
def test_filtered_groups_of_several_batches_make_one_update(dapo: Any) -> None:
    assert dapo["runs"]["filtered"]["on"]["calls"] == ["generate_sequences", "generate_sequences", "update_actor"]


@pytest.mark.on
def test_switch_is_a_field_of_the_configuration(dapo: Any) -> None:
    assert dapo["refusals"]["composed"] is True


@pytest.mark.off
def test_left_alone_fit_computes_old_log_probs(dapo_off: Any) -> None:
    assert dapo_off["plain"]["calls"] == ["generate_sequences", "compute_log_prob", "update_actor"] * 2
    assert dapo_off["filtered"]["calls"] == ["generate_sequences"] * 2 + ["compute_log_prob", "update_actor"]
    for out in dapo_off.values():
        assert all(out["old_log_probs_sent"]) and all(out["timed_old_log_prob"])


@pytest.mark.misuse
def test_the_update_must_be_one_mini_batch(dapo: Any) -> None:
    refusals = dapo["refusals"]
    assert refusals["filtered"] is None, (
        "of eight generated prompts the update gets four, as data.train_batch_size says"
    )
    assert "it gets 8 prompts; set actor.ppo_mini_batch_size=8, not 4" in refusals["unfiltered"]
    assert "it gets 8 prompts; set actor.ppo_mini_batch_size=8, not 4" in refusals["two_mini_batches"]
    assert "set algorithm.use_kl_in_reward=False" in refusals["kl_in_reward"]


@pytest.mark.misuse
@pytest.mark.parametrize("name", ["prime", "entropy", "sppo", "one_step_off_policy"])
def test_other_trainers_of_recipe_refuse_it(dapo: Any, name: str) -> None:
    message = dapo["refusals"]["others"][name]
    assert message.startswith(SWITCH) and f"recipe.{name}." in message
    assert "leave the switch False with this trainer" in message


@pytest.mark.misuse
def test_spin_refuses_it_where_its_actor_is_made(dapo: Any) -> None:
    assert "SPINDataParallelPPOActor" in dapo["refusals"]["spin_actor"]
