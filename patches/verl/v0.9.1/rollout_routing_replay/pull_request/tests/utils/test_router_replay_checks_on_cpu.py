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

import pytest
from hydra import compose, initialize_config_module

from verl.trainer.main_ppo import TaskRunnerV1, run_ppo

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
R3 = [f"{ACTOR}.megatron.router_replay.mode=R3", f"{ROLLOUT}.enable_rollout_routing_replay=True"]


def _run(monkeypatch, *overrides):
    """run_ppo up to the point where it starts Ray, which raises RuntimeError here."""

    def init(*args, **kwargs):
        raise RuntimeError("Ray is started")

    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", init)
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_megatron_trainer", overrides=[f"{ROLLOUT}.name=vllm", *overrides])
    run_ppo(config, TaskRunnerV1)


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        R3,
        [f"{ACTOR}.megatron.router_replay.mode=R2"],
        [*R3, f"{ACTOR}.megatron.router_replay.missing_routes=native"],
    ],
    ids=["disabled", "R3", "R2", "R3-native"],
)
def test_valid_configs_get_as_far_as_ray(monkeypatch, overrides):
    with pytest.raises(RuntimeError, match="Ray is started"):
        _run(monkeypatch, *overrides)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (R3[:1], "enable_rollout_routing_replay=True, or mode=R2"),
        (R3[1:], "records routes that nothing reads"),
        ([*R3, "actor_rollout_ref.model.use_remove_padding=False"], "use_remove_padding=True"),
        ([*R3, f"{ACTOR}.megatron.router_replay.missing_routes=ignore"], "missing_routes=ignore is not known"),
        (
            [f"{ACTOR}.megatron.router_replay.mode=R2", "algorithm.rollout_correction.bypass_mode=True"],
            "bypass_mode=False",
        ),
    ],
)
def test_configs_that_replay_nothing_are_rejected_before_ray_starts(monkeypatch, overrides, message):
    with pytest.raises(ValueError, match=message):
        _run(monkeypatch, *overrides)
