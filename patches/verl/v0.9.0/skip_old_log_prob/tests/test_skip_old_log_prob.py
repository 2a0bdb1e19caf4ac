"""skip_old_log_prob: steps of verl's v1 trainer with and without the pass that computes the old log-probabilities."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness import Upstream
from models import TinyModels

VERL: dict[str, Any] = {"need": ["verl"], "standins": ["torchvision"], "timeout": 400}
# verl has no platform for a CPU; the probe brings one. The engine is the one that it registers for cuda and npu.
CPU = {"VERL_PLATFORM": "cpu", "VERL_ENGINE_DEVICE": "cuda"}
MEGATRON: dict[str, Any] = {
    "need": ["verl", "megatron-lm"],
    "standins": ["megatron_cpu", "torchvision"],
    "timeout": 300,
}
ACTOR = "actor_rollout_ref.actor"
SKIP = f"{ACTOR}.skip_old_log_prob=True"
ENTROPY = f"{ACTOR}.entropy_coeff=0.01"
MEANS = [f"{ACTOR}.loss_agg_mode=seq-mean-token-mean", f"{ACTOR}.policy_loss.loss_mode=gspo"]
PACKED = ["actor_rollout_ref.model.use_remove_padding=True"]
FITS = ["main_ppo", SKIP, "data.train_batch_size=64", f"{ACTOR}.ppo_mini_batch_size=64", f"{ACTOR}.strategy=fsdp"]
FITS += ["actor_rollout_ref.rollout.calculate_log_probs=False", "actor_rollout_ref.rollout.name=vllm"]
FITS += [f"{ACTOR}.ppo_micro_batch_size_per_gpu=2", "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2"]
FITS += ["algorithm.adv_estimator=grpo", "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=2"]
PASS, UPDATE = "compute_log_prob", "update_actor"


def steps(upstream: Upstream, models: TinyModels, *cases: list[str], procs: int = 1) -> Any:
    texts = map(json.dumps, cases)
    return upstream.run("probe_skip_old_log_prob.py", models.qwen3, *texts, procs=procs, env=CPU, **VERL)


@pytest.mark.on
def test_a_step_without_the_pass_is_the_step_with_it(upstream: Upstream, tiny_models: TinyModels) -> None:
    """Weights bit for bit, and the reported entropy; with the entropy's gradient, other means and losses, and rows that fill the batch."""
    settings: list[list[str]] = [[], [ENTROPY], MEANS, [*MEANS, "padded"], PACKED]
    made = steps(upstream, tiny_models, *(one + more for one in settings for more in ([], [SKIP])))
    for with_it, without in zip(made[::2], made[1::2], strict=True):
        assert (with_it["called"], without["called"]) == ([PASS, UPDATE], [UPDATE])
        assert with_it["error"] is without["error"] is None
        assert with_it["changed"]
        assert without["weights"] == with_it["weights"]
        for name, value in with_it["metrics"].items():
            assert without["metrics"][name] == pytest.approx(value, rel=1e-2 if name == "actor/entropy" else 1e-6), name
        # An entropy that is only a figure keeps no logits for a backward.
        assert without["kept"] == with_it["kept"] > 0
    # Packing makes the same step of another pass.
    assert len({one["weights"] for one in made}) == len(settings) - 1, "settings that make no difference"


@pytest.mark.on
def test_megatrons_head_keeps_no_logits_for_an_entropy_that_is_only_a_figure(upstream: Upstream) -> None:
    cases = [[False, None, False], *([True, grad, chunks] for chunks in (False, True) for grad in (None, False))]
    none, loss, figure, *chunked = upstream.run("probe_skip_megatron_head.py", *map(json.dumps, cases), **MEGATRON)
    assert loss["differentiable"] and loss["kept"] > none["kept"] > 0
    for one in (figure, chunked[1]):
        assert not one["differentiable"]
        assert one["kept"] == none["kept"]
    for one in (loss, figure, *chunked):
        assert (one["log_probs"], one["gradient"]) == (none["log_probs"], none["gradient"])
        assert one["entropy"] == pytest.approx(loss["entropy"], rel=1e-6)


@pytest.mark.on
def test_two_ranks(upstream: Upstream, tiny_models: TinyModels) -> None:
    first, second = steps(upstream, tiny_models, [], [SKIP], procs=2)
    for with_it, without in (first, second):
        assert (with_it["called"], without["called"]) == ([PASS, UPDATE], [UPDATE])
        assert without["error"] is None
        assert without["weights"] == with_it["weights"]
    assert first[1]["weights"] == second[1]["weights"]


@pytest.mark.off
def test_off_the_pass_is_made_and_entropy_is_its(upstream: Upstream, tiny_models: TinyModels) -> None:
    (made,) = steps(upstream, tiny_models, [])
    assert made["called"] == [PASS, UPDATE]
    assert (made["error"], made["changed"]) == (None, True)
    assert made["metrics"]["actor/entropy"] > 0
    assert "actor/entropy_loss" not in made["metrics"]
    assert made["metrics"]["actor/ppo_kl"] == pytest.approx(0, abs=1e-6)


@pytest.mark.off
def test_off_a_configuration_class_of_somebody_elses_has_the_same_step(
    upstream: Upstream, tiny_models: TinyModels
) -> None:
    """verl's loss takes any class that has what it reads, and the switch is nothing that such a class has."""
    plain, other = steps(upstream, tiny_models, [], ["another class"])
    assert (other["error"], other["changed"]) == (None, True)
    assert other["weights"] == plain["weights"]
    assert other["called"] == [PASS, UPDATE]


@pytest.mark.misuse
def test_what_only_the_worker_sees_is_refused_before_a_weight_changes(
    upstream: Upstream, tiny_models: TinyModels
) -> None:
    dropout = "+actor_rollout_ref.model.override_config.attention_dropout=0.1"
    cases = [[SKIP, f"{ACTOR}.ppo_mini_batch_size=1"], [SKIP, "old"], [SKIP, dropout]]
    two, old, noise = steps(upstream, tiny_models, *cases)
    assert "an update gets 4 responses, in mini-batches of 2 and 1 epochs, and not one" in two["error"]
    assert "this trainer computed them all the same" in old["error"]
    assert not two["changed"] and not old["changed"]
    assert "attention_dropout is not 0" in noise["error"]
    assert noise["called"] == []


REFUSED = {
    "neither True nor False": [f"{ACTOR}.skip_old_log_prob=off"],
    "another trainer than the v1 one computes them": ["trainer.use_v1=False"],
    "separate_async computes them": ["trainer.v1.trainer_mode=separate_async"],
    "strategy=torchtitan was not tried": [f"{ACTOR}.strategy=torchtitan"],
    "actor.ppo_epochs=1, not 2": [f"{ACTOR}.ppo_epochs=2"],
    "actor.ppo_mini_batch_size=64, not 32": [f"{ACTOR}.ppo_mini_batch_size=32"],
    "algorithm.use_kl_in_reward=False": ["algorithm.use_kl_in_reward=True"],
    "bypass_mode=False": ["algorithm.rollout_correction.bypass_mode=True"],
    "rollout.calculate_log_probs=False": ["actor_rollout_ref.rollout.calculate_log_probs=True"],
    "adv_estimator=optimal_token_baseline": ["algorithm.adv_estimator=optimal_token_baseline"],
    "distillation.enabled=False": ["distillation.enabled=True"],
}


# Entry points with trainers of their own.
REFUSED_ELSEWHERE = [["one_step_off_policy", *FITS[1:]], ["fully_async_policy", *FITS[1:]]]


@pytest.fixture(scope="module")
def refusals(upstream: Upstream) -> Any:
    """What is said to FITS, to the switch off, to REFUSED and to REFUSED_ELSEWHERE, and of models."""
    off = [one for one in FITS if one != SKIP and "batch_size=64" not in one]
    cases = [FITS, off, *(FITS + one for one in REFUSED.values()), *REFUSED_ELSEWHERE]
    return upstream.run("probe_skip_refusals.py", *map(json.dumps, cases), **VERL)


@pytest.mark.misuse
def test_settings_that_need_old_log_probabilities_are_refused_before_ray(refusals: Any) -> None:
    fits, off, *answers = refusals["settings"]
    assert fits is None
    assert off is None, "without the switch nothing is asked"
    elsewhere = ["another trainer than the v1 one computes them"] * 2
    for words, answer in zip([*REFUSED, *elsewhere], answers, strict=True):
        assert answer is not None and words in answer, (words, answer)


@pytest.mark.misuse
def test_a_model_with_dropout_is_refused_whatever_chunk_has_it(refusals: Any) -> None:
    said = {name: refusals["models"][name] for name in ("clean", "alone", "first", "last")}
    assert said.pop("clean") is None
    assert all("the dropout of 1 is not 0" in one for one in said.values()), said
    assert sorted(said) == ["alone", "first", "last"]


@pytest.mark.misuse
def test_dropout_that_is_no_module_is_refused(refusals: Any) -> None:
    said = refusals["models"]
    assert "residual_dropout is not 0" in said["Seed-OSS"] and "dropout is not 0" in said["OPT"]
    assert said["without"] is None
