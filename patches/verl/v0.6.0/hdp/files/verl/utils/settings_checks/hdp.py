# Copyright 2025 Individual Contributor: patchctl
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
"""What hybrid_data_parallel refuses before a run starts; see verl/utils/hybrid_data_parallel/setup.py."""

from . import setting, switch

OTHERS = {"critic": "the critic", "reward_model": "the reward model"}
SWITCHES = tuple(
    f"{part}.megatron.{name}"
    for part in ("actor_rollout_ref.actor", "actor_rollout_ref.ref", *OTHERS)
    for name in ("hybrid_data_parallel", "hybrid_data_parallel_by_time")
)


def check(config) -> None:
    if not any(switch(config, key) for key in SWITCHES):
        return
    from verl.utils.hybrid_data_parallel.setup import check_config, refuse

    for part, who in OTHERS.items():
        refuse(setting(config, f"{part}.megatron") or {}, who)
    # The workers look for MindSpeed: the driver may run where there is none.
    check_config(config.actor_rollout_ref, mindspeed_is_there=True)
