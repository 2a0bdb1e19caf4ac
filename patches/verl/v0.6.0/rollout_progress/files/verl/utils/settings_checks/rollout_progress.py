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
"""What rollout_progress refuses before a run starts, and when a rollout is built without this check."""

from . import setting, switch

ROLLOUT = "actor_rollout_ref.rollout"
KEY = f"{ROLLOUT}.show_progress"
SWITCHES = (KEY,)


def check(config) -> None:
    if switch(config, KEY):
        check_rollout(setting(config, ROLLOUT))


def check_rollout(rollout) -> None:
    """Refuses a rollout that has no bar; `rollout` is a RolloutConfig, or the configuration's section, with it on."""
    name, mode = rollout.name, rollout.get("mode", "sync")
    if (name, mode) != ("vllm", "sync"):
        raise ValueError(
            f"rollout.show_progress is for rollout.name=vllm with rollout.mode=sync, not for name={name} "
            f"with mode={mode}: set it to False"
        )
