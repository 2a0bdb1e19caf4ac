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
"""What moe_update_weights refuses of models with sparse latent attention, before a run starts; see
verl/workers/rollout/mla_weights.py."""

import json
import os

from . import setting, switch

MODEL = "actor_rollout_ref.model"
KEY = "actor_rollout_ref.rollout.moe_update_weights"
SWITCHES = ()


def check(config) -> None:
    path = setting(config, f"{MODEL}.hf_config_path") or setting(config, f"{MODEL}.path")
    # Elsewhere than on this machine the model is read by the workers, and refused when its engine is built.
    file = os.path.join(os.path.expanduser(str(path)), "config.json")
    if not switch(config, KEY) or not os.path.isfile(file):
        return
    with open(file, encoding="utf-8") as opened:
        sparse = "index_topk" in json.load(opened)
    if sparse:
        raise ValueError(
            f"{KEY}=True: {path} has sparse attention (index_topk in its config.json), which vllm-ascend's SFA "
            "computes: it gives up kv_b_proj when the engine is built, so that no update can be loaded: take a model "
            "with plain latent attention, as DeepSeek-V3 or R1"
        )
