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
"""What grouped_experts refuses of settings, before a run and in the workers; see verl/models/mcore/grouped_experts.py.

Not in that module, because its package imports Megatron, which a driver may not have.
"""

from . import setting, switch

ACTOR, REFERENCE, CRITIC, REWARD_MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.ref", "critic", "reward_model"
SWITCHES = tuple(f"{part}.megatron.grouped_experts" for part in (ACTOR, REFERENCE, CRITIC, REWARD_MODEL))


def check(config) -> None:
    for part, key in zip((ACTOR, REFERENCE, CRITIC, REWARD_MODEL), SWITCHES, strict=True):
        if switch(config, key) and _is_made(config, part):
            megatron, load_weight = setting(config, f"{part}.megatron"), setting(config, f"{part}.load_weight", True)
            check_section(f"{part}.megatron", megatron, load_weight)


def _is_made(config, part: str) -> bool:
    """Whether there will be workers of this part; what is set for others is read by nobody."""
    if part == REFERENCE:
        return bool(setting(config, "algorithm.use_kl_in_reward") or setting(config, f"{ACTOR}.use_kl_loss"))
    if part == CRITIC:
        from verl.trainer.ppo.utils import need_critic

        return need_critic(config)
    return part == ACTOR or bool(setting(config, f"{REWARD_MODEL}.enable"))


def check_section(where, megatron, load_weight):
    """Refuses settings of the engine that know nothing of grouped experts."""
    if megatron.get("use_mbridge", False):
        raise ValueError(f"{where}.grouped_experts: mbridge does not know these weights; set {where}.use_mbridge=False")
    etp = megatron.get("expert_tensor_parallel_size", None) or megatron.get("tensor_model_parallel_size", 1)
    if etp > 1:
        raise ValueError(
            f"{where}.grouped_experts: experts split by tensor parallelism ({etp}) are not supported; set "
            f"{where}.expert_tensor_parallel_size=1"
        )
    path = megatron.get("dist_checkpointing_path", None)
    if load_weight and not (path and megatron.get("use_dist_checkpointing", False)):
        raise ValueError(
            f"{where}.grouped_experts: Hugging Face weights cannot be loaded into grouped experts; convert them with "
            f"converter_hf_to_mcore.py --grouped_experts and set {where}.use_dist_checkpointing=True and "
            f"{where}.dist_checkpointing_path to the result"
        )
