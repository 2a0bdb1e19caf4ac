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
"""What spec_and_graph_config refuses before a run starts; see verl/workers/config/engine_settings.py."""

from . import setting

ROLLOUT = "actor_rollout_ref.rollout"
SWITCHES = (f"{ROLLOUT}.npugraph_ex.enable", f"{ROLLOUT}.npugraph_ex.enable_static_kernel")


def check(config) -> None:
    rollout = setting(config, ROLLOUT)
    if rollout is not None:
        from verl.workers.config.engine_settings import check_engine_settings

        check_engine_settings(rollout)
