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
"""What ep_alltoallv_reshard refuses before a run starts; see verl/utils/ep_reshard_setup.py."""

from . import setting, switch

PARTS = ("actor_rollout_ref.actor", "actor_rollout_ref.ref", "critic", "reward_model")
SWITCHES = tuple(f"{part}.megatron.ep_alltoallv_reshard" for part in PARTS)


def check(config) -> None:
    if not any(switch(config, key) for key in SWITCHES):
        return
    from verl.utils.ep_reshard_setup import check_config, refuse_without_rollout

    for part in PARTS[1:]:
        refuse_without_rollout(setting(config, f"{part}.megatron") or {}, f"{part}.megatron")
    check_config(setting(config, "actor_rollout_ref"), "actor_rollout_ref")
