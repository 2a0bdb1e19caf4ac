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
"""Expert load balancing of a vllm-ascend engine, for the time of each generation only.

The engine's balancing (EPLB) moves experts between devices while it generates. Around training that is wrong: its
planner process and its buffers stay, and a weight update writes experts where they were at the start, not where they
are. So the engine is configured to balance on demand (vllm-ascend patch eplb_reset), starts when a generation begins
and stops, with everything as before, when it ends; see vllm_ascend/eplb/on_demand.py.

Only the synchronous vllm rollout does this. Settings of EPLB itself are the user's, in
`rollout.engine_kwargs.vllm.additional_config.eplb_config`.
"""

import importlib.util
from contextlib import contextmanager
from typing import Any

import torch

from verl.utils.settings_checks import given_mapping
from verl.workers.rollout.data_parallel import number_of_experts

KEY = "actor_rollout_ref.rollout.eplb_lifecycle"
ON = {"dynamic_eplb": True, "on_demand": True}


def check_rollout(config: Any) -> None:
    """
    Refuse rollouts that do not balance, whoever builds them.

    Args:
        config: RolloutConfig, with eplb_lifecycle on

    Raises:
        ValueError: names the setting and what to set instead
    """
    if (config.name, config.mode) != ("vllm", "sync"):
        raise ValueError(
            f"{KEY}=True is for rollout.name=vllm with rollout.mode=sync, not {config.name} with {config.mode}: "
            "set it to False"
        )


def check(config: Any, model_config: Any) -> None:
    """
    Refuse what cannot be balanced, before an engine is made.

    Args:
        config: RolloutConfig, with eplb_lifecycle on
        model_config: HFModelConfig

    Raises:
        ValueError: names the setting and what to set instead
    """
    check_rollout(config)
    if not number_of_experts(model_config.hf_config):
        raise ValueError(f"{KEY}=True, but the model has no experts: set it to False")
    check_configuration(config, model_config.lora_rank, torch.distributed.get_world_size())


def check_configuration(config: Any, lora_rank: int, workers: int) -> None:
    """
    The part of it that the configuration alone tells.

    Args:
        config: RolloutConfig or the section of the configuration, with eplb_lifecycle on
        lora_rank: of the model
        workers: how many processes there are, or will be

    Raises:
        ValueError: names the setting and what to set instead
    """
    check_rollout(config)
    if lora_rank > 0:
        raise ValueError(f"{KEY}=True does not work with LoRA: set it to False, or actor_rollout_ref.model.lora_rank=0")
    ranks = config.tensor_model_parallel_size * config.data_parallel_size
    if config.expert_parallel_size <= 1:
        raise ValueError(
            f"{KEY}=True needs experts on several devices: set rollout.expert_parallel_size to "
            f"rollout.tensor_model_parallel_size * rollout.data_parallel_size ({ranks}), which must be above 1"
        )
    # The engine exchanges experts over the default process group, which is that of all workers.
    if ranks != workers:
        raise ValueError(
            f"{KEY}=True needs one engine over all {workers} workers, but rollout.tensor_model_parallel_size * "
            f"rollout.data_parallel_size is {ranks}: set rollout.data_parallel_size accordingly"
        )
    # Not declared where that patch is left out; the engine then refuses weights that were not processed.
    if config.get("moe_update_weights", True) is False:
        raise ValueError(f"{KEY}=True needs experts processed after updates: set rollout.moe_update_weights=True")


def with_balancing(config: Any, model_config: Any, engine_kwargs: dict[str, Any]) -> dict[str, Any]:
    """
    Add what makes the engine balance on demand to the user's own engine arguments.

    Args:
        config, model_config: as for `check`, which comes first: some recipes build rollouts in workers of their own
        engine_kwargs: arguments for vllm's LLM; not changed

    Returns:
        the same with additional_config["eplb_config"] completed; all that the user has set is kept

    Raises:
        ValueError: as `check`; when the user has set the opposite; when the engine has no balancing on demand
    """
    check(config, model_config)
    additional, eplb = given_settings(engine_kwargs)
    if importlib.util.find_spec("vllm_ascend") is None or not importlib.util.find_spec("vllm_ascend.eplb.on_demand"):
        raise ValueError(f"{KEY}=True needs vllm-ascend with the patch eplb_reset: set it to False, or apply the patch")
    return engine_kwargs | {"additional_config": additional | {"eplb_config": eplb | ON}}


def given_settings(engine_kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """
    Get what the user has set of the engine's balancing.

    Args:
        engine_kwargs: arguments for vllm's LLM

    Returns:
        its additional_config, and the eplb_config in it; {} for what is not there

    Raises:
        ValueError: one of them is no mapping, or the opposite of what balancing on demand needs is set
    """
    place = "actor_rollout_ref.rollout.engine_kwargs.vllm.additional_config"
    additional = given_mapping(engine_kwargs.get("additional_config"), place)
    eplb = given_mapping(additional.get("eplb_config"), f"{place}.eplb_config")
    for name, value in ON.items():
        if eplb.get(name, value) is not value:
            raise ValueError(f"{KEY}=True, but {place}.eplb_config.{name}={eplb[name]}: leave one of them out")
    return additional, eplb


@contextmanager
def balancing(engine: Any):
    """Let `engine`, a vllm LLM, balance its experts within this context; every rank of the engine enters it."""
    engine.collective_rpc("eplb_start")
    try:
        yield
    except BaseException:
        # Other ranks may be elsewhere: no exchange of experts any more, but no process and no buffer stays either.
        engine.collective_rpc("eplb_abort")
        raise
    engine.collective_rpc("eplb_stop")
