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
"""Data and expert parallelism of the synchronous vllm rollout.

vllm runs here as SPMD: every rank of the torch world builds an `LLM` with the external launcher, and vllm cuts the
world into (engine groups, data parallel, tensor parallel) in this order (vllm/distributed/parallel_state.py,
`initialize_model_parallel`). One engine group is one copy of the model: its data parallel ranks hold different requests
and share the experts, so they have to step together. vllm derives the data parallel rank of an external launcher from
RANK, which is right for one group only (vllm/config/parallel.py); the variables VLLM_DP_SIZE and VLLM_DP_RANK of its
offline SPMD mode say it for any number of groups, so those are used. That mode's address and port are left alone: with
the external launcher vllm's groups are made out of torch's world, which exists (`init_distributed_environment`).
"""

import functools
import logging
import os
from contextlib import contextmanager
from dataclasses import dataclass

import torch.distributed as dist

logger = logging.getLogger(__file__)
logger.setLevel(os.getenv("VERL_LOGGING_LEVEL", "WARN"))

# Where vllm looks for the number of experts (vllm/transformers_utils/model_arch_config_convertor.py)
EXPERT_KEYS = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")


@dataclass(frozen=True)
class EngineGroup:
    """The ranks that run one engine (one copy of the model), as one of them sees it.

    Attributes:
        index: which of the `count` groups of the world this is.
        dp_rank, dp_size: data parallel rank of this process in its group, and how many there are.
        tp_rank, tp_size: the same for tensor parallelism.
    """

    index: int
    count: int
    dp_rank: int
    dp_size: int
    tp_rank: int
    tp_size: int

    @property
    def size(self) -> int:
        """How many processes the group has; with expert parallelism the experts are spread over all of them."""
        return self.dp_size * self.tp_size

    @property
    def ranks(self) -> list[int]:
        """Ranks of the group in the torch world, ordered by (data parallel rank, tensor parallel rank)."""
        return list(range(self.index * self.size, (self.index + 1) * self.size))

    @property
    def dp_ranks(self) -> list[int]:
        """Ranks in the torch world that share this process' tensor parallel rank, ordered by data parallel rank."""
        return self.ranks[self.tp_rank :: self.tp_size]


def engine_group(config, rank: int, world_size: int) -> EngineGroup:
    """The engine group of process `rank`.

    Args:
        config: RolloutConfig, or the `rollout` node of the configuration.

    Raises:
        ValueError: `world_size` is no multiple of the engine's size.
    """
    tp_size, dp_size = config.tensor_model_parallel_size, config.data_parallel_size
    size = tp_size * dp_size
    if world_size % size:
        raise ValueError(
            f"rollout.data_parallel_size={dp_size} with rollout.tensor_model_parallel_size={tp_size} needs a multiple "
            f"of {size} processes for the rollout, and there are {world_size}: change one of the sizes"
        )
    place = rank % size
    return EngineGroup(
        index=rank // size,
        count=world_size // size,
        dp_rank=place // tp_size,
        dp_size=dp_size,
        tp_rank=place % tp_size,
        tp_size=tp_size,
    )


def ranks_per_shard(config, world_size: int) -> int:
    """How many neighbouring ranks generate for the same prompts.

    In the synchronous vllm rollout each data parallel rank has requests of its own, so a shard is what one tensor
    parallel group works on. Every other rollout keeps upstream's product of both sizes.

    Raises:
        ValueError: the sizes do not fit each other or the world.
    """
    tp_size, dp_size = config.tensor_model_parallel_size, config.data_parallel_size
    if (config.name, config.mode) != ("vllm", "sync") or dp_size == 1:
        return tp_size * dp_size
    if dp_size < 1:
        raise ValueError(f"rollout.data_parallel_size={dp_size}: set it to 1 (none) or more")
    engine_group(config, 0, world_size)
    return tp_size


def engine_arguments(config, hf_config) -> dict:
    """What `LLM` is given for data and expert parallelism; nothing when both sizes are 1.

    The data parallel size itself goes by the environment, see `data_parallel_environment`. A dense model without data
    parallelism is built as upstream builds it, which does not read expert_parallel_size.

    Args:
        config: RolloutConfig.
        hf_config: the model's Hugging Face configuration.

    Raises:
        ValueError: the configuration cannot be served; the message names the key and what to set instead.
    """
    dp_size, ep_size = config.data_parallel_size, config.expert_parallel_size
    if dp_size == 1 and ep_size == 1:
        return {}
    given = (config.get("engine_kwargs", {}) or {}).get("vllm", {}) or {}
    if dp_size == 1 and not number_of_experts(hf_config):
        logger.warning(
            f"rollout.expert_parallel_size={ep_size} has no effect: {type(hf_config).__name__} has no experts"
        )
        return {}
    check_sizes(config)
    _check_experts(config, hf_config)
    _check_given_twice(ep_size, given)
    arguments = {"enable_expert_parallel": True} if ep_size > 1 else {}
    if dp_size > 1:
        arguments.update(_scheduling(given))
    # The user's own goes to LLM as well, and says the same.
    return {key: value for key, value in arguments.items() if given.get(key) is None}


def check_sizes(config) -> None:
    """Raises ValueError for sizes that do not fit each other; `config` as for `engine_group`."""
    tp_size, dp_size, ep_size = (
        config.tensor_model_parallel_size,
        config.data_parallel_size,
        config.expert_parallel_size,
    )
    if dp_size < 1:
        raise ValueError(f"rollout.data_parallel_size={dp_size}: set it to 1 (none) or more")
    if ep_size not in (1, tp_size * dp_size):
        raise ValueError(
            f"rollout.expert_parallel_size={ep_size}: set it to 1 (experts are cut as other layers are) or to "
            f"{tp_size * dp_size}, which is tensor_model_parallel_size * data_parallel_size"
        )


def _check_experts(config, hf_config) -> None:
    if not number_of_experts(hf_config):
        raise ValueError(
            f"rollout.data_parallel_size={config.data_parallel_size} and "
            f"rollout.expert_parallel_size={config.expert_parallel_size} are for models with "
            f"experts, and {type(hf_config).__name__} has none: set both to 1. Without data parallelism each tensor "
            "parallel group is an engine with prompts of its own already"
        )


def _check_given_twice(ep_size: int, given) -> None:
    """Refuses engine arguments that would lose against the fields of RolloutConfig, or win over them."""
    twice = [key for key in ("data_parallel_size", "data_parallel_rank") if given.get(key) is not None]
    if given.get("enable_expert_parallel") not in (None, ep_size > 1):
        twice.append("enable_expert_parallel")
    if twice:
        raise ValueError(
            f"rollout.engine_kwargs.vllm.{twice[0]}={given[twice[0]]}: leave it out, rollout.data_parallel_size and "
            "rollout.expert_parallel_size decide it"
        )


def _scheduling(given) -> dict:
    """Turns asynchronous scheduling off, which vllm 0.14 has on by default, unless the user decides.

    With it an engine makes steps that have no tokens, when the last token of its last request is still on its way. The
    other ranks run the model in these steps and wait. vllm's GPU model runner takes part with a dummy batch
    (`execute_model`, "external launcher and DP"); vllm-ascend v0.14.0rc1's returns early, and all of them hang.
    """
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform

    asked = given.get("async_scheduling")
    if asked and not current_platform.is_cuda_alike():
        raise ValueError(
            "rollout.engine_kwargs.vllm.async_scheduling=True hangs on this platform with "
            "rollout.data_parallel_size > 1: leave it out"
        )
    if asked is not None or not hasattr(EngineArgs, "async_scheduling"):
        return {}
    return {"async_scheduling": False}


def number_of_experts(hf_config) -> int:
    """Routed experts of a layer, 0 for a dense model, found where vllm finds them."""
    text_config = hf_config.get_text_config()
    for key in EXPERT_KEYS:
        found = getattr(text_config, key, None)
        if found:
            return found[0] if isinstance(found, list) else found
    return 0


def in_data_parallel_environment(init):
    """Decorates vLLMRollout.__init__: with data_parallel_size > 1 vllm finds its place in the environment meanwhile."""

    @functools.wraps(init)
    def init_with_environment(self, config, model_config, device_mesh):
        if config.data_parallel_size == 1:
            init(self, config, model_config, device_mesh)
            return
        engine_arguments(config, model_config.hf_config)  # refuses before anything is built
        group = engine_group(config, dist.get_rank(), dist.get_world_size())
        with data_parallel_environment(group):
            init(self, config, model_config, device_mesh)
        check_engine(self.inference_engine, group)

    return init_with_environment


@contextmanager
def data_parallel_environment(group: EngineGroup):
    """Sets VLLM_DP_* for this process, as vllm's offline SPMD mode reads them, and puts back what was there.

    A collective call over the torch world.

    Raises:
        ValueError: on every process, when one of them has a VLLM_DP_SIZE that says something else.
    """
    _check_size_variables(group)
    wanted = {"VLLM_DP_SIZE": str(group.dp_size), "VLLM_DP_RANK": str(group.dp_rank)}
    before = {key: os.environ.get(key) for key in wanted}
    os.environ.update(wanted)
    _forget_cached_variables()
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
        _forget_cached_variables()


def _forget_cached_variables() -> None:
    """vllm keeps all variables from the first engine on; ours must neither be missed nor be kept by it."""
    from vllm import envs

    if hasattr(envs, "disable_envs_cache") and hasattr(envs.__getattr__, "cache_clear"):
        envs.disable_envs_cache()
        envs.enable_envs_cache()


def _check_size_variables(group: EngineGroup) -> None:
    """What one process has wrong all of them raise, so that none waits for it."""
    sizes = [None] * dist.get_world_size()
    dist.all_gather_object(sizes, os.environ.get("VLLM_DP_SIZE"))
    for rank, size in enumerate(sizes):
        if size is not None and size != str(group.dp_size):
            raise ValueError(
                f"data parallel rollout, process {rank}: VLLM_DP_SIZE={size}, but rollout.data_parallel_size="
                f"{group.dp_size}: unset VLLM_DP_SIZE, it is derived"
            )


def check_engine(engine, group: EngineGroup) -> None:
    """Makes sure that vllm has placed this process where verl sends the prompts of it.

    Raises:
        RuntimeError: sizes or rank order of vllm's groups are others.
    """
    from vllm.distributed import get_dp_group

    parallel = engine.llm_engine.vllm_config.parallel_config
    found = (parallel.data_parallel_size, parallel.data_parallel_rank, list(get_dp_group().ranks))
    wanted = (group.dp_size, group.dp_rank, group.dp_ranks)
    if found != wanted:
        raise RuntimeError(
            f"vllm has data parallel (size, rank, ranks) {found}, and the rollout needs {wanted}: this vllm orders "
            "its ranks differently"
        )
