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
"""What data_rebalance refuses before a run starts; see verl/utils/rollout_order.py."""

from . import switch

KEY = "actor_rollout_ref.rollout.data_rebalance"
SWITCHES = (KEY,)


def check(config) -> None:
    if switch(config, KEY):
        from verl.utils.rollout_order import check_configuration

        check_configuration(config)
