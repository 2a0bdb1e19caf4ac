# Copyright 2026 Bytedance Ltd. and/or its affiliates
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from hydra import compose, initialize_config_module
from tensordict import TensorDict

from verl.trainer.main_ppo import TaskRunnerV1, run_ppo
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils import tensordict_utils as tu
from verl.workers.config import ActorConfig
from verl.workers.utils.losses import ppo_loss

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
SKIP = [f"{ACTOR}.skip_old_log_prob=True", f"{ACTOR}.ppo_mini_batch_size=1024", f"{ROLLOUT}.calculate_log_probs=False"]


class _StubTrainer(PPOTrainer):
    def on_step_end(self):
        pass

    def on_sample_end(self):
        pass


def _config(*overrides):
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=[f"{ROLLOUT}.name=vllm", "algorithm.adv_estimator=grpo", *overrides])


def _loss(old_log_probs=None, **actor):
    """ppo_loss of two responses (2 and 3 tokens) to one-token prompts, and the model outputs it was computed from."""

    def nested(values):
        return torch.nested.as_nested_tensor([values[:2], values[2:]], layout=torch.jagged)

    log_probs = torch.tensor([-0.3, -1.2, -9.0, -0.7, -2.0, -0.1, -9.0], requires_grad=True)
    entropy = torch.full((7,), 2.0, requires_grad=True)
    ones = torch.ones(5, dtype=torch.long)
    fields = {"responses": ones, "response_mask": ones, "advantages": torch.tensor([1.0, 0.5, -1.0, 2.0, 0.1])}
    if old_log_probs is not None:
        fields["old_log_probs"] = torch.tensor(old_log_probs)
    data = TensorDict({name: nested(value) for name, value in fields.items()}, batch_size=2)
    data["prompts"] = torch.nested.as_nested_tensor([ones[:1], ones[:1]], layout=torch.jagged)
    tu.assign_non_tensor(data, dp_size=1, batch_num_tokens=5, global_batch_size=2)
    config = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=2, **actor)
    loss, metrics = ppo_loss(config, {"log_probs": log_probs, "entropy": entropy}, data)
    loss.backward()
    return loss, metrics, log_probs, entropy


@pytest.mark.parametrize("loss_agg_mode", ["token-mean", "seq-mean-token-mean"])
def test_loss_equals_the_one_with_recomputed_log_probs(loss_agg_mode):
    loss, metrics, log_probs, _ = _loss(loss_agg_mode=loss_agg_mode, skip_old_log_prob=True)
    expected, _, expected_log_probs, _ = _loss([-0.3, -1.2, -0.7, -2.0, -0.1], loss_agg_mode=loss_agg_mode)
    assert torch.equal(loss, expected)
    assert torch.equal(log_probs.grad, expected_log_probs.grad) and log_probs.grad.any()
    assert metrics["actor/ppo_kl"].aggregate() == 0


def test_loss_reads_old_log_probs_by_default():
    assert _loss([-1.0] * 5)[0] != _loss([-2.0] * 5)[0]


@pytest.mark.parametrize(("entropy_coeff", "has_gradient"), [(0, False), (0.01, True)])
def test_entropy_only_has_a_gradient_if_it_is_part_of_the_loss(entropy_coeff, has_gradient):
    _, metrics, _, entropy = _loss(skip_old_log_prob=True, entropy_coeff=entropy_coeff)
    assert metrics["actor/entropy_loss"].aggregate() == 2
    assert (entropy.grad is not None) == has_gradient


def test_trainer_skips_the_forward_pass_and_reports_the_entropy_of_the_update():
    trainer, metrics = _StubTrainer.__new__(_StubTrainer), {}
    trainer.config, trainer.actor_rollout_wg = _config(*SKIP), MagicMock()
    trainer.actor_rollout_wg.update_actor.return_value = {"metrics": {"entropy_loss": [0.75], "mfu": [0.5]}}
    batch = SimpleNamespace(extra_info={})
    assert trainer._compute_old_log_prob(batch, metrics) is batch
    trainer._update_actor(batch, metrics)
    trainer.actor_rollout_wg.compute_log_prob.assert_not_called()
    assert batch.extra_info["calculate_entropy"] is True
    assert batch.extra_info["entropy_requires_grad"] is False
    assert metrics["actor/entropy"] == 0.75


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (f"{ACTOR}.ppo_epochs=2", "actor.ppo_epochs=1, not 2"),
        (f"{ACTOR}.ppo_mini_batch_size=256", "actor.ppo_mini_batch_size=1024, not 256"),
        (f"{ROLLOUT}.calculate_log_probs=True", "calculate_log_probs=False"),
        ("algorithm.use_kl_in_reward=True", "use_kl_in_reward=False"),
        ("trainer.v1.trainer_mode=separate_async", "separate_async computes them"),
    ],
)
def test_configs_that_need_old_log_probs_are_rejected_before_ray_starts(monkeypatch, override, message):
    monkeypatch.setattr("ray.init", lambda *args, **kwargs: pytest.fail("Ray was started"))
    with pytest.raises(ValueError, match=message):
        run_ppo(_config(*SKIP, override), TaskRunnerV1)


def test_dropout_and_updates_of_several_mini_batches_are_rejected():
    from verl.utils.skip_old_log_prob import check_model, check_update

    check_model(SimpleNamespace(module=torch.nn.Dropout(0.0)))
    with pytest.raises(ValueError, match="dropout"):
        check_model(SimpleNamespace(module=[torch.nn.Linear(1, 1), torch.nn.Sequential(torch.nn.Dropout(0.1))]))
    update = tu.get_tensordict({"responses": torch.zeros(2, 1)}, {"mini_batch_size": 4, "epochs": 1})
    check_update(update, ranks=2)
    with pytest.raises(ValueError, match="mini-batches of 4"):
        check_update(update, ranks=4)
