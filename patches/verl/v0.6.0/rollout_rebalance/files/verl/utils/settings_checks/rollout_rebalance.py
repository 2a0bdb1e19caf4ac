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
"""What rollout_rebalance refuses before a run starts; see verl/workers/config/rollout_rebalance.py."""

from . import setting, switch

ROLLOUT = "actor_rollout_ref.rollout"
KEY = f"{ROLLOUT}.rollout_rebalance.enable"
SWITCHES = (KEY,)


def check(config) -> None:
    if switch(config, KEY):
        from verl.workers.config.rollout_rebalance import check_settings, check_values

        rollout = setting(config, ROLLOUT)
        check_values(rollout.rollout_rebalance)
        check_settings(rollout)
