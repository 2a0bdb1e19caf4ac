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

from verl.utils.config import omega_conf_to_dataclass

ACTOR, REF = "actor_rollout_ref.actor", "actor_rollout_ref.ref"


def _engines_compile(*overrides):
    """Whether the FSDP engines of the actor and of the reference compile the entropy."""
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=[f"{ACTOR}.ppo_micro_batch_size_per_gpu=1", *overrides])
    actor, ref = config.actor_rollout_ref.actor, config.actor_rollout_ref.ref
    engine_config = omega_conf_to_dataclass(actor).engine
    return engine_config.use_torch_compile, omega_conf_to_dataclass(ref.fsdp_config).use_torch_compile


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([f"{ACTOR}.use_torch_compile=False"], (False, False)),  # the reference follows the actor
        ([f"{REF}.use_torch_compile=False"], (True, False)),
        ([f"{ACTOR}.use_torch_compile=False", f"{REF}.use_torch_compile=True"], (False, True)),
    ],
)
def test_engine_follows_use_torch_compile_of_its_role(overrides, expected):
    assert _engines_compile(*overrides) == expected


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], (True, True)),
        ([f"{ACTOR}.fsdp_config.use_torch_compile=False"], (False, True)),
        ([f"{REF}.fsdp_config.use_torch_compile=False"], (True, False)),
        (
            [f"{ACTOR}.use_torch_compile=False", f"{ACTOR}.fsdp_config.use_torch_compile=True"],
            (True, False),
        ),
    ],
)
def test_explicit_engine_config_wins(overrides, expected):
    assert _engines_compile(*overrides) == expected
