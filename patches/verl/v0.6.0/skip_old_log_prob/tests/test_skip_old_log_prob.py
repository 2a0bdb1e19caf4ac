"""skip_old_log_prob: a step without the forward pass for the old log-probabilities, and otherwise the same step.

RayPPOTrainer.fit runs for real over verl's FSDP worker and over its Megatron worker (see the probes for what is not
real). Each case runs twice from the same weights and seed, with the pass and without it. No tolerance is needed: the
gradients, the weights after two steps and everything logged are bit-equal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from harness import Upstream
from models import TinyModels
from skipped_pass import SWITCH, one_pass_less, same_step

MEGATRON = {"need": ["verl", "megatron-lm"], "standins": ["megatron_cpu"]}
STEPS = 2
FSDP_CASES = [
    "plain",
    "entropy_and_kl_loss",
    "dynamic_micro_batches",
    "sequence_ratio",
    "other_micro_batches",
    "remax",
    "two_ranks",
]
MEGATRON_CASES = ["plain", "entropy_and_kl_loss", "dynamic_micro_batches", "other_micro_batches"]


@pytest.fixture(scope="module")
def fsdp(upstream: Upstream, tiny_models: TinyModels) -> Any:
    return upstream.run("probe_skip_fit.py", tiny_models.qwen3, "on", need=["verl"], timeout=300)


@pytest.fixture(scope="module")
def fsdp_off(upstream: Upstream, tiny_models: TinyModels) -> Any:
    return upstream.run("probe_skip_fit.py", tiny_models.qwen3, "off", need=["verl"], timeout=300)


@pytest.fixture(scope="module")
def megatron(upstream: Upstream, tiny_models: TinyModels) -> Any:
    cases = [*MEGATRON_CASES, "refusals"]
    return upstream.run("probe_skip_megatron.py", tiny_models.qwen3, *cases, timeout=300, **MEGATRON)


@pytest.fixture(scope="module")
def two_stages(upstream: Upstream, tiny_models: TinyModels) -> Any:
    case = "dynamic_micro_batches"
    return upstream.run("probe_skip_megatron.py", tiny_models.qwen3, case, timeout=300, procs=2, **MEGATRON)


@pytest.fixture(scope="module")
def refusals(upstream: Upstream, tiny_models: TinyModels) -> Any:
    return upstream.run("probe_skip_refusals.py", tiny_models.qwen3, need=["verl"], timeout=300)


@pytest.mark.on
@pytest.mark.parametrize("name", FSDP_CASES)
def test_fsdp_step_is_the_same(fsdp: Any, name: str) -> None:
    same_step(fsdp[name])


@pytest.mark.on
@pytest.mark.parametrize("name", FSDP_CASES)
def test_fsdp_has_one_pass_less(fsdp: Any, name: str) -> None:
    one_pass_less(fsdp[name])


@pytest.mark.on
@pytest.mark.parametrize("name", MEGATRON_CASES)
def test_megatron_step_is_the_same(megatron: Any, name: str) -> None:
    same_step(megatron[name])


@pytest.mark.on
@pytest.mark.parametrize("name", MEGATRON_CASES)
def test_megatron_has_one_pass_less(megatron: Any, name: str) -> None:
    one_pass_less(megatron[name])


@pytest.mark.on
@pytest.mark.slow
def test_megatron_with_two_pipeline_stages(two_stages: Any) -> None:
    for stage in two_stages:
        same_step(stage["dynamic_micro_batches"])
        one_pass_less(stage["dynamic_micro_batches"])


@pytest.mark.on
def test_entropy_is_reported_as_before(fsdp: Any, megatron: Any) -> None:
    for cases, names in ((fsdp, FSDP_CASES), (megatron, MEGATRON_CASES)):
        for name in names:
            off, on = cases[name]["off"]["entropy"], cases[name]["on"]["entropy"]
            assert on == off and len(on) == STEPS
            assert len(set(on)) == STEPS, "the weights changed between the steps, and so did the entropy"


@pytest.mark.on
def test_reported_entropy_has_no_gradient(fsdp: Any) -> None:
    assert fsdp["plain"]["on"]["entropy_needs_grad"] == [False]
    assert fsdp["plain"]["off"]["entropy_needs_grad"] == []
    assert fsdp["entropy_and_kl_loss"]["on"]["entropy_needs_grad"] == [True], "it is part of the loss there"


@pytest.mark.off
@pytest.mark.parametrize("name", ["plain", "dynamic_micro_batches", "two_epochs_of_two_mini_batches"])
def test_left_alone_fit_computes_old_log_probs(fsdp_off: Any, name: str) -> None:
    out = fsdp_off[name]
    assert out["calls"] == ["generate_sequences", "compute_log_prob", "update_actor"] * STEPS
    assert out["old_log_probs_sent"] == [True] * STEPS
    assert out["timed_old_log_prob"] == [True] * STEPS
    assert out["entropy_needs_grad"] == []
    updates = out["forwards"]["update_actor"] / out["forwards"]["compute_log_prob"]
    assert updates == (2 if name == "two_epochs_of_two_mini_batches" else 1)


@pytest.mark.on
def test_switch_is_a_field_of_the_configuration(refusals: Any) -> None:
    assert refusals["composed"] == {
        "ppo_trainer": True,
        "ppo_megatron_trainer": True,
        "default": False,
        "generated": {"ppo_trainer": False, "ppo_megatron_trainer": False},
    }


SETTINGS = {
    "two_epochs": "set actor.ppo_epochs=1, not 2",
    "two_mini_batches": "it gets 4 prompts; set actor.ppo_mini_batch_size=4, not 2",
    "larger_mini_batch": "it gets 4 prompts; set actor.ppo_mini_batch_size=4, not 8",
    "generated_more": "it gets 8 prompts; set actor.ppo_mini_batch_size=8, not 4",
    "kl_in_reward": "set algorithm.use_kl_in_reward=False",
    "rollout_is": "set algorithm.rollout_is_threshold=null and algorithm.rollout_is=False",
    "rollout_is_threshold": "set algorithm.rollout_is_threshold=null and algorithm.rollout_is=False",
    "rollout_log_probs": "set actor_rollout_ref.rollout.calculate_log_probs=False",
    "pf_ppo": "set algorithm.use_pf_ppo=False",
    "strategy": "use one of fsdp, fsdp2, megatron",
}


@pytest.mark.misuse
@pytest.mark.parametrize("name", SETTINGS)
def test_setting_is_refused_at_start(refusals: Any, name: str) -> None:
    message = refusals["trainers"]["settings"][name]
    assert message.startswith(SWITCH) and SETTINGS[name] in message


@pytest.mark.misuse
def test_switch_must_be_a_boolean(refusals: Any) -> None:
    expected = "actor_rollout_ref.actor.skip_old_log_prob='maybe': set it to True or False"
    assert refusals["trainers"]["settings"]["not_a_boolean"] == expected


@pytest.mark.misuse
def test_what_can_be_computed_is_not_refused(refusals: Any) -> None:
    allowed = refusals["trainers"]["allowed"]
    assert set(allowed) == {"group_normalised", "generated_as_many", "kl_loss", "asynchronous"}
    assert set(allowed.values()) == {None}


@pytest.mark.misuse
def test_trainer_that_does_not_know_the_switch_is_refused(refusals: Any) -> None:
    for name in ("fit_of_its_own", "init_of_its_own"):
        assert "leave the switch False with this trainer" in refusals["trainers"][name]
    assert "set actor.shuffle=False" in refusals["trainers"]["megatron_shuffle"]


ACTORS: dict[str, Callable[[Any, Any], str]] = {
    "old_log_probs": lambda fsdp, megatron: fsdp["old_log_probs"],
    "old_log_probs, megatron": lambda fsdp, megatron: megatron["old_log_probs"],
    "two_mini_batches": lambda fsdp, megatron: fsdp["two_mini_batches"],
    "two_mini_batches, megatron": lambda fsdp, megatron: megatron["two_mini_batches"],
    "dropout": lambda fsdp, megatron: fsdp["dropout"],
    "attention_dropout": lambda fsdp, megatron: fsdp["attention_dropout"],
    "dropout, megatron": lambda fsdp, megatron: megatron["dropout"],
    "subclass": lambda fsdp, megatron: fsdp["subclass"],
    "engine_worker": lambda fsdp, megatron: fsdp["engine_worker"],
}
ADVICE = {
    "old_log_probs": "this trainer computed old log-probabilities all the same",
    "two_mini_batches": "16 responses in mini-batches of 8",
    "dropout": "set it to 0 with model.override_config",
    "attention_dropout": "attention_dropout is not 0",
    "subclass": "its update may need old log-probabilities; leave it False",
    "engine_worker": "leave it False",
}


@pytest.mark.misuse
@pytest.mark.parametrize("name", ACTORS)
def test_actor_refuses_by_itself(refusals: Any, megatron: Any, name: str) -> None:
    message = ACTORS[name](refusals["actors"], megatron["refusals"])
    assert message.startswith(SWITCH) and ADVICE[name.split(",")[0]] in message


@pytest.mark.misuse
def test_noise_of_a_router_is_refused(refusals: Any) -> None:
    attributes = ("jitter_noise", "router_jitter_noise", "input_jitter_noise")
    for attribute, message in zip(attributes, refusals["actors"]["router_noise"], strict=True):
        assert message.startswith(f"{SWITCH}{attribute} is not 0")


@pytest.mark.misuse
def test_nothing_was_trained_when_it_was_refused(refusals: Any) -> None:
    assert refusals["actors"]["unchanged"] is True
    assert refusals["actors"]["reference_policy"] is None, "the reference policy is not updated, so it may have dropout"
