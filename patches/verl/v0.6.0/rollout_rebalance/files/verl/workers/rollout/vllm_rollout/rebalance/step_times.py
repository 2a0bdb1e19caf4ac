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
"""How long a step takes by graph size, and what a move costs: measured once, when the engine has captured its graphs.

With these the planner makes a move only if it pays. Not measured are the attention over long caches, which no graph
size changes, and what else than KV blocks and messages a move costs: its destination builds a request's drafts anew.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate

import torch

from verl.utils.device import get_torch_device

from .channel import Column
from .kv_blocks import copy_blocks
from .planner import Times

logger = logging.getLogger(__file__)
logger.setLevel(os.getenv("VERL_LOGGING_LEVEL", "WARN"))

# The fastest of so many runs counts.
RUNS = 3
# Steps for which a smaller graph is expected to last, as in benchmarks/bench_rollout_rebalance.py.
HORIZON = 1024
BLOCKS = 8


def measured(runner, column: Column, sizes: Sequence[int], tensors: Sequence[torch.Tensor], limit: int) -> Times | None:
    """What the planner is told, the same on every rank; None where the engine runs without graphs.

    A collective call of the engine group, before the first request: blocks of the cache are overwritten.

    Args:
        runner: the engine's NPUModelRunner.
        sizes: graph sizes in tokens.
        tensors, limit: as for `copy_blocks`.
    """
    if not runner.use_aclgraph:
        if column.rank == 0:
            logger.warning("rollout_rebalance: without graphs no step is timed, and moves go by graph size alone")
        return None
    most = min(runner.max_num_tokens, runner.max_num_reqs * runner.uniform_decode_query_len)

    def step(size: int) -> float:
        return _seconds(column, lambda: runner._dummy_run(min(size, most), uniform_decode=True, skip_eplb=True))

    ordered = sorted(sizes)
    # A larger graph takes no less time: what is seen of it is the machine's noise, and would be a reason to move.
    steps = dict(zip(ordered, accumulate(map(step, ordered), max), strict=True))
    messages = _seconds(column, lambda: column.exchange([None] * column.size))
    one, more = (_seconds(column, partial(_pass_on, column, tensors, blocks, limit)) for blocks in (1, 1 + BLOCKS))
    times = Times(
        step=tuple(steps[size] for size in sizes),
        horizon_steps=HORIZON,
        pause=2 * messages + one,
        block=max(0.0, more - one) / BLOCKS,
    )
    logger.info(f"rollout_rebalance: {times}")
    return times


def _pass_on(column: Column, tensors: Sequence[torch.Tensor], blocks: int, limit: int) -> None:
    """Each rank sends its first blocks to the next one."""
    numbers = [block % len(tensors[0]) for block in range(blocks)]
    following, before = ((column.rank + step) % column.size for step in (1, -1))
    table = {(rank, (rank + 1) % column.size): blocks for rank in range(column.size)}
    copy_blocks(column, tensors, {following: numbers}, {before: numbers}, table, limit)


def _seconds(column: Column, call: Callable[[], object]) -> float:
    """On the slowest rank; the ranks begin together, and a first run is not counted."""
    found = []
    for _ in range(1 + RUNS):
        column.largest()
        start = time.perf_counter()
        call()
        get_torch_device().synchronize()
        found.append(time.perf_counter() - start)
    return column.largest([round(1e9 * min(found[1:]))])[0] / 1e9
