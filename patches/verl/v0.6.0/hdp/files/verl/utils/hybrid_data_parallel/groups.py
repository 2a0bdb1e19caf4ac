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
"""The process groups of all blocks that a layout may have (packing.py).

They are made once, by their ranks in the same order, and kept: what is in here is which groups exist, never which one
is in use. A micro-batch carries its own (PackedSeqParams.cp_group).
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from megatron.core import parallel_state as mpu
from torch.distributed import ProcessGroup

from verl.utils.device import get_device_name


class BlockGroups(NamedTuple):
    """The group of a block's ranks, and a second one of the same ranks for messages that overlap."""

    group: ProcessGroup
    overlap: ProcessGroup | None


# By the world, which may be destroyed and made anew, the ranks of the context parallel group in it, and whether there
# are second groups; then by (first rank, ranks).
_MADE: dict[tuple[ProcessGroup, tuple[int, ...], bool], dict[tuple[int, int], BlockGroups]] = {}
# Megatron's default (distributed_timeout_minutes), which verl leaves to its groups.
_TIMEOUT = timedelta(minutes=30)


def make_groups(overlap: bool) -> dict[tuple[int, int], BlockGroups]:
    """The groups that this rank is in. In the first call the ranks of a group wait for each other, not for others.

    The whole context parallel group is none of them: there Megatron's own groups are used.
    """
    own = tuple(dist.get_process_group_ranks(mpu.get_context_parallel_group()))
    key = (dist.group.WORLD, own, overlap)
    if key not in _MADE:
        _MADE[key] = dict(_groups_of(own, overlap))
    return _MADE[key]


def warm_up(groups: dict[tuple[int, int], BlockGroups]) -> None:
    """Sends a number around each ring, as attention does. All ranks of a context parallel group call it.

    HCCL makes a group's communicators, and their buffers, at its first message, which may be in the middle of a run.
    """
    from mindspeed.core.context_parallel.utils import RingP2P

    for (_, size), block in sorted(groups.items()):
        if size > 1:
            ring = RingP2P(dist.get_process_group_ranks(block.group), block.group, block.overlap)
            value = torch.ones(1, device=get_device_name())
            ring.async_send_recv(value, torch.empty_like(value))
            ring.wait()


def _groups_of(ranks: tuple[int, ...], overlap: bool) -> Iterator[tuple[tuple[int, int], BlockGroups]]:
    """Makes this rank's groups of a context parallel group: one of each size, the smallest first on all of them."""
    here = ranks.index(dist.get_rank())
    for size in (size for size in range(1, len(ranks)) if len(ranks) % size == 0):
        first = here // size * size
        members = list(ranks[first : first + size])
        yield (first, size), BlockGroups(_group(members), _group(members) if overlap and size > 1 else None)


def _group(members: list[int]) -> ProcessGroup:
    """A group with the options of Megatron's own context parallel groups; MindSpeed puts HCCL's in."""
    return mpu.create_group(
        members,
        timeout=_TIMEOUT,
        pg_options=mpu.get_nccl_options("cp", {}),
        # Otherwise all ranks of the world would have to make all groups, one after another.
        use_local_synchronization=True,
        group_desc="HYBRID_DATA_PARALLEL_GROUP",
    )
