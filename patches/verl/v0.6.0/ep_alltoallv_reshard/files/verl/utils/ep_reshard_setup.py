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
"""actor_rollout_ref.actor.megatron.ep_alltoallv_reshard: what it refuses, and how ranks learn each other's layout."""

import socket
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from verl.utils.ep_reshard import RankLayout
from verl.utils.settings_checks import given_mapping

KEY = "actor_rollout_ref.actor.megatron.ep_alltoallv_reshard"


def check_config(config: Any, role: str) -> None:
    """Refuses settings with which expert weights cannot be sent to the ranks that hold them.

    Args:
        config: the section actor_rollout_ref.
        role: the worker's role.

    Raises:
        ValueError: naming what to set instead; never while the switch is off.
    """
    refuse_without_rollout((config.get("ref") or {}).get("megatron") or {}, "actor_rollout_ref.ref.megatron")
    megatron = config.actor.get("megatron") or {}
    if not megatron.get("ep_alltoallv_reshard", False):
        return
    for wrong, instead in _refusals(config, megatron, role):
        if wrong:
            raise ValueError(f"{KEY}=True {instead}, or set it to False")


def refuse_without_rollout(megatron: Any, section: str) -> None:
    """Raises ValueError where the switch is on for workers that send no weights to a rollout."""
    if megatron.get("ep_alltoallv_reshard", False):
        raise ValueError(
            f"{section}.ep_alltoallv_reshard has no meaning, only the actor's weights go to the rollout: set it to "
            f"False, and {KEY} if you mean that"
        )


def _refusals(config: Any, megatron: Any, role: str) -> list[tuple[bool, str]]:
    rollout = config.rollout
    # What McoreEngineConfig leaves open, Megatron sets to the tensor parallel size.
    expert_tensor = megatron.get("expert_tensor_parallel_size") or megatron.tensor_model_parallel_size
    # A reference worker of its own has the same configuration, and nothing to send.
    split = role in ("actor", "rollout")
    return [
        (split, f"needs actor and rollout in one worker, this one's role is {role!r}"),
        (megatron.use_mbridge, "needs actor_rollout_ref.actor.megatron.use_mbridge=False: mbridge exports by itself"),
        (
            expert_tensor != 1,
            "needs actor_rollout_ref.actor.megatron.expert_tensor_parallel_size=1: experts are sent whole",
        ),
        (rollout.name != "vllm", f"needs actor_rollout_ref.rollout.name=vllm, not {rollout.name}"),
        (rollout.mode != "sync", f"needs actor_rollout_ref.rollout.mode=sync, not {rollout.mode}"),
        (
            _moves_experts(rollout),
            "needs an engine that keeps its experts where they are: no expert load balancing or redundant experts "
            "in actor_rollout_ref.rollout (engine_kwargs.vllm, eplb_lifecycle)",
        ),
    ]


def _moves_experts(rollout: Any) -> bool:
    """Whether the engine is configured to balance experts (EPLB of vllm, or of vllm-ascend) or to keep some twice."""
    if rollout.get("eplb_lifecycle"):
        return True
    place = "actor_rollout_ref.rollout.engine_kwargs.vllm"
    engine = (rollout.get("engine_kwargs") or {}).get("vllm") or {}
    sections = [engine, additional := given_mapping(engine.get("additional_config"), f"{place}.additional_config")]
    sections += [
        given_mapping(engine.get("eplb_config"), f"{place}.eplb_config"),
        given_mapping(additional.get("eplb_config"), f"{place}.additional_config.eplb_config"),
    ]
    keys = ("enable_eplb", "dynamic_eplb", "expert_map_path", "num_redundant_experts")
    return any(section.get(key) for section in sections for key in keys)


def build_expert_reshard(tf_config: Any, megatron: Any, rollout: Any, actor_module: Any):
    """Makes the exchange for this worker; all ranks call it, while the engine's weights are in memory.

    Args:
        tf_config: Megatron's TransformerConfig.
        megatron: the section actor_rollout_ref.actor.megatron.
        rollout: the vLLMRollout.
        actor_module: this rank's model chunks.

    Returns:
        ExpertReshard, or None for a dense model, which is left to upstream's generator.

    Raises:
        ValueError: on all ranks, when what one of them has cannot be served.
    """
    if not tf_config.num_moe_experts:
        return None
    from verl.utils.ep_reshard_exchange import ExpertReshard, expert_weights

    def record():
        weights = expert_weights(actor_module, tf_config)
        if any(weight.grouped for weight in weights):
            _check_grouped(megatron)
        worker = rollout.inference_engine.llm_engine.model_executor.driver_worker.worker
        held, engine = engine_experts(worker.model_runner.get_model())
        return rank_layout(tf_config.num_moe_experts, held, engine), weights

    return ExpertReshard(gather_records(record), tf_config.num_moe_experts)


def _check_grouped(megatron: Any) -> None:
    """Without the field nothing loads or checks grouped experts, so what would be sent may be their random start.

    Upstream's generator stops there with "Unsupported parameter name".
    """
    if megatron.get("grouped_experts", False) is not True:
        raise ValueError(
            "the actor's expert weights are grouped (weight1, weight2), and without its field no checkpoint reaches "
            "them: set actor_rollout_ref.actor.megatron.grouped_experts=True"
        )


def gather_records(record: Callable[[], Any]) -> list[Any]:
    """What `record` returns on every rank, by rank; raises ValueError on all ranks when it raises on one.

    A rank that raised alone would leave the others waiting in their next collective.
    """
    cause = None
    try:
        mine = (None, record())
    except Exception as error:  # of any kind: the other ranks wait for this one's answer
        cause = error
        mine = (str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}", None)
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, mine)
    for rank, (error, _) in enumerate(gathered):
        if error is not None:
            raise ValueError(f"{KEY}=True, rank {rank}: {error}") from cause
    return [record for _, record in gathered]


def rank_layout(num_experts: int, holds: tuple[int, ...], engine: tuple[int, ...]) -> RankLayout:
    """This rank's layout: what it trains according to Megatron's groups, and what its engine keeps, as given.

    Raises:
        ValueError: when Megatron shards each expert.
    """
    from megatron.core import mpu

    if mpu.get_expert_tensor_parallel_world_size() != 1:
        raise ValueError("experts are sharded by expert tensor parallelism in training")
    local = num_experts // mpu.get_expert_model_parallel_world_size()
    first = mpu.get_expert_model_parallel_rank() * local
    return RankLayout(
        stage=mpu.get_pipeline_model_parallel_rank(),
        owns=tuple(range(first, first + local)),
        holds=holds,
        engine=engine,
        node=socket.gethostname(),
    )


def engine_experts(model: torch.nn.Module) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The experts that this rank's vllm model keeps, and the global ranks between which its experts are divided.

    It is read from the layers, which is what vllm's weight loader goes by: an expert that the map lacks is skipped
    when it comes, and not missed when it does not.

    Raises:
        ValueError: when layers differ, or experts are redundant or moved while the engine runs.
    """
    from vllm.distributed.parallel_state import get_ep_group
    from vllm.model_executor.layers.fused_moe import FusedMoE

    layers = [module for module in model.modules() if isinstance(module, FusedMoE)]
    if not layers:
        raise ValueError("the rollout's model has no MoE layer, the actor's has")
    if any(getattr(layer, name, False) for layer in layers for name in ("enable_eplb", "dynamic_eplb")):
        raise ValueError("the rollout engine balances experts (EPLB), so the ranks that hold them change: turn it off")
    held = {_held(layer) for layer in layers}
    if len(held) > 1:
        raise ValueError("the rollout engine places experts differently in different layers")
    divided = layers[0].ep_size > 1
    return held.pop(), tuple(get_ep_group().ranks) if divided else (dist.get_rank(),)


def _held(layer: torch.nn.Module) -> tuple[int, ...]:
    """Ids of the experts that one FusedMoE keeps; -1 in its map stands for those that it has not."""
    if layer._expert_map is None:
        return tuple(range(layer.global_num_experts))
    return tuple(expert for expert, local in enumerate(layer._expert_map.tolist()) if local >= 0)
