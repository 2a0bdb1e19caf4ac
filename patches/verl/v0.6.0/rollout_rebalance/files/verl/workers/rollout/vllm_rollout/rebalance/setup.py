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
"""Builds the rebalancing of one rollout's engine."""

from dataclasses import replace

import torch
import torch.distributed as dist

from verl.utils.device import get_torch_device
from verl.workers.config.rollout_rebalance import KEY, check_settings
from verl.workers.rollout.data_parallel import engine_group

from .channel import Column
from .checks import check_engine
from .engine_requests import EngineRequests
from .executor import Rebalancer
from .hook import EngineHook
from .kv_blocks import KVLayoutError, cache_tensors
from .ledger import Ledger
from .planner import Policy
from .step_times import measured

# vllm's own name of the sizes that it captures graphs for
CAPTURED = "cudagraph_capture_sizes"


def make_column(config) -> Column:
    """The groups of the moves, with their communicator. A collective call of the torch world, before an engine is made:
    that takes what is left of the device's memory for its KV cache.

    Raises:
        ValueError: the configuration cannot be served; the message says what to set instead.
    """
    check_settings(config)
    column = Column(engine_group(config, dist.get_rank(), dist.get_world_size()))
    # Makes the communicator now; what fails in that is seen at start as well, not during a generation.
    nothing = torch.zeros(1, device=get_torch_device().current_device())
    column.exchange_elements([nothing] * column.size, [1] * column.size)
    return column


def install(engine, config, column: Column) -> EngineHook:
    """Lets the engine take part in rebalancing. A collective call of the engine group, before the first request.

    Args:
        engine: vllm's LLM, of a rollout with data_parallel_size > 1.
        config: RolloutConfig.
        column: of `make_column`.

    Raises:
        ValueError: the engine cannot be served; the message says what to set instead.
    """
    check_engine(engine)
    core = engine.llm_engine.engine_core.engine_core
    runner = engine.llm_engine.model_executor.driver_worker.worker.model_runner
    settings = config.rollout_rebalance
    policy = make_policy(settings, engine.llm_engine.vllm_config)
    tensors = kv_tensors(core, runner)
    ledger = Ledger(column.rank)
    staging = settings.staging_megabytes << 20
    policy = replace(policy, times=measured(runner, column, policy.graph_sizes, tensors, staging))
    requests = EngineRequests(core, runner)
    rebalancer = Rebalancer(column, requests, ledger, policy, tensors, staging)
    hook = EngineHook(engine.llm_engine, rebalancer, column, ledger, settings.interval)
    hook.install()
    return hook


def make_policy(settings, vllm_config) -> Policy:
    """The planner's policy: graph sizes of the configuration, or those that the engine has captured.

    Raises:
        ValueError: there are none, or they are smaller than the tokens of one request and step.
    """
    speculative = vllm_config.speculative_config
    tokens = 1 + (speculative.num_speculative_tokens if speculative else 0)
    sizes = tuple(settings.graph_sizes) or tuple(getattr(vllm_config.compilation_config, CAPTURED) or ())
    if not sizes or min(sizes) < tokens:
        raise ValueError(
            f"{KEY}: the graph sizes are {list(sizes)}, and a request takes {tokens} tokens a step: name sizes of at "
            f"least {tokens} in {KEY}.graph_sizes"
        )
    return Policy(
        graph_sizes=sizes,
        block_size=vllm_config.cache_config.block_size,
        growth_tokens=settings.interval * tokens,
        tokens_per_request=tokens,
    )


def kv_tensors(core, runner) -> list[torch.Tensor]:
    """The engine's KV cache.

    Raises:
        ValueError: its layout is none that blocks can be copied out of.
    """
    try:
        return cache_tensors(runner, core.scheduler.kv_cache_config.num_blocks, core.scheduler.block_size)
    except KVLayoutError as error:
        raise ValueError(f"{KEY}.enable=True: {error}; set {KEY}.enable=False") from error
