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

import logging
from unittest.mock import MagicMock, patch

import pytest
from hydra import compose, initialize_config_module

from verl.trainer.ppo.v1 import trainer_separate_async
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.trainer.ppo.v1.trainer_separate_async import HybridEngineMode, PPOTrainerSeparateAsync


def _setup(hybrid_replicas: int) -> PPOTrainerSeparateAsync:
    """Run ``_setup`` with three standalone replicas; workers and servers are mocked."""
    trainer = PPOTrainerSeparateAsync.__new__(PPOTrainerSeparateAsync)
    with initialize_config_module("verl.trainer.config", version_base=None):
        trainer.config = compose("ppo_trainer", overrides=["actor_rollout_ref.rollout.name=vllm"])
    trainer._enable_hybrid_replicas = hybrid_replicas > 0
    trainer.actor_rollout_wg = MagicMock()
    trainer.llm_server_manager = MagicMock(rollout_replicas=[MagicMock()] * hybrid_replicas)
    standalone = MagicMock()
    standalone.get_replicas.return_value = [MagicMock()] * 3
    with (
        patch.object(PPOTrainer, "_setup"),
        patch.object(trainer_separate_async.LLMServerManager, "create", return_value=standalone) as create,
        patch.object(trainer_separate_async, "CheckpointEngineManager") as checkpoint_manager,
        patch.object(trainer, "add_replicas_to_balancer") as add_replicas_to_balancer,
    ):
        trainer._setup()
    create.assert_called_once_with(config=trainer.config, start_rank=hybrid_replicas)
    assert checkpoint_manager.call_args.kwargs["replicas"] == standalone.get_replicas()
    assert add_replicas_to_balancer.called == (hybrid_replicas > 0)
    return trainer


def test_without_hybrid_replicas_setup_ends_in_trainer_mode(caplog):
    with caplog.at_level(logging.INFO, logger=trainer_separate_async.logger.name):
        trainer = _setup(hybrid_replicas=0)
    assert trainer.current_mode == HybridEngineMode.TRAINER
    assert caplog.messages[-1].endswith("rollout served by 3 standalone replicas only")


@pytest.mark.parametrize("hybrid_replicas", [1, 2])
def test_with_hybrid_replicas_setup_ends_in_rollout_mode(hybrid_replicas):
    assert _setup(hybrid_replicas).current_mode == HybridEngineMode.ROLLOUT
