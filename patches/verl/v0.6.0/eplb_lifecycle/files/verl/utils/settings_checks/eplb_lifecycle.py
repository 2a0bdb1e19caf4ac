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
"""What eplb_lifecycle refuses before a run starts; see verl/workers/rollout/eplb_lifecycle.py."""

from . import setting, switch

ROLLOUT = "actor_rollout_ref.rollout"
KEY = f"{ROLLOUT}.eplb_lifecycle"
SWITCHES = (KEY,)


def check(config) -> None:
    if switch(config, KEY):
        from verl.workers.rollout.eplb_lifecycle import check_configuration, given_settings

        rollout = setting(config, ROLLOUT)
        lora_rank = setting(config, "actor_rollout_ref.model.lora_rank", 0)
        check_configuration(rollout, lora_rank, config.trainer.nnodes * config.trainer.n_gpus_per_node)
        given_settings(setting(config, f"{ROLLOUT}.engine_kwargs.vllm") or {})
