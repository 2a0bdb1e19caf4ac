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

They are made once, by all ranks in the same order, and kept: what is in here is which groups exist, never which one is
in use. A micro-batch carries its own (PackedSeqParams.cp_group).
"""

from datetime import timedelta
from typing import NamedTuple

import torch.distributed as dist
from megatron.core import parallel_state as mpu
from torch.distributed import ProcessGroup


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
    """The groups that this rank is in. The first call is collective: every rank of the world has to make it.

    The whole context parallel group is none of them: there Megatron's own groups are used.
    """
    own = tuple(dist.get_process_group_ranks(mpu.get_context_parallel_group()))
    key = (dist.group.WORLD, own, overlap)
    if key not in _MADE:
        everyone: list = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, own)
        made: dict[tuple[int, int], BlockGroups] = {}
        # Sorted, because ranks that make groups in different orders wait for each other for ever.
        for ranks in sorted(set(everyone)):
            made |= _groups_of(ranks, overlap)
        _MADE[key] = made
    return _MADE[key]


def _groups_of(ranks: tuple[int, ...], overlap: bool) -> dict[tuple[int, int], BlockGroups]:
    """Makes the groups of one context parallel group; returns those that this rank is in."""
    own: dict[tuple[int, int], BlockGroups] = {}
    for size in (size for size in range(1, len(ranks)) if len(ranks) % size == 0):
        for first in range(0, len(ranks), size):
            members = list(ranks[first : first + size])
            groups = BlockGroups(_group(members), _group(members) if overlap and size > 1 else None)
            if dist.get_rank() in members:
                own[first, size] = groups
    return own


def _group(members: list[int]) -> ProcessGroup:
    """A group with the options of Megatron's own context parallel groups; MindSpeed puts HCCL's in."""
    return mpu.create_group(
        members,
        timeout=_TIMEOUT,
        pg_options=mpu.get_nccl_options("cp", {}),
        # There is one for each rank of the world, which need not wait for each other.
        use_local_synchronization=len(members) == 1,
        group_desc="HYBRID_DATA_PARALLEL_GROUP",
    )
