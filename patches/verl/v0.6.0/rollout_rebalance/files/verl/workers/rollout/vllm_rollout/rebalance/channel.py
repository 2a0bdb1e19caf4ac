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
"""How the ranks of one engine group talk during a rebalance: objects over gloo, KV blocks over the device's backend.

A column is the data-parallel ranks with one tensor-parallel rank. Each process holds its shard of every KV block of its
data-parallel rank, so a column is all that a request's blocks need. The groups are made once and used for nothing else:
nothing of the model's own collectives can come between.

Every method is a collective call of the column.
"""

import pickle
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist


class Column:
    """The data-parallel ranks that share this process' tensor-parallel rank.

    Making it is a collective call of the whole torch world, for `torch.distributed.new_group` is.

    Args:
        group: verl.workers.rollout.data_parallel.EngineGroup of this process.
        backend: of device tensors, as the engine's own data-parallel group has it (hccl; gloo on a CPU).
    """

    def __init__(self, group, backend: str) -> None:
        self.rank, self.size = group.dp_rank, group.dp_size
        for index in range(group.count):
            for tp_rank in range(group.tp_size):
                first = index * group.size + tp_rank
                ranks = list(range(first, first + group.size, group.tp_size))
                control = dist.new_group(ranks, backend="gloo")
                blocks = control if backend == "gloo" else dist.new_group(ranks, backend=backend)
                if ranks == group.dp_ranks:
                    self._control, self._blocks = control, blocks

    def largest(self, values: Sequence[int]) -> list[int]:
        """The largest over the ranks, of each of the values."""
        tensor = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self._control)
        return tensor.tolist()

    def exchange(self, objects: Sequence[Any]) -> list[Any]:
        """Sends one object to each rank, itself too, and returns what each sent here. Sizes go first.

        Python objects, pickled: the senders are ranks of the same engine. Raises whatever pickling raises, before
        anything is sent.
        """
        packed = [pickle.dumps(one, protocol=pickle.HIGHEST_PROTOCOL) for one in objects]
        sizes = torch.tensor([len(one) for one in packed], dtype=torch.int64)
        coming = torch.empty_like(sizes)
        dist.all_to_all_single(coming, sizes, group=self._control)
        sent = torch.frombuffer(bytearray(b"".join(packed)), dtype=torch.uint8)
        received = torch.empty(int(coming.sum()), dtype=torch.uint8)
        dist.all_to_all_single(received, sent, coming.tolist(), sizes.tolist(), group=self._control)
        return [pickle.loads(part.numpy().tobytes()) for part in received.split(coming.tolist())]

    def exchange_elements(self, sent: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
        """Sends flat tensors of one dtype and device, one to each rank; `sizes` are those that come."""
        flat = torch.cat(list(sent))
        received = flat.new_empty(sum(sizes))
        dist.all_to_all_single(received, flat, list(sizes), [one.numel() for one in sent], group=self._blocks)
        return list(received.split(list(sizes)))
