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

Before anything is sent all ranks of the engine group meet in `largest`. One that has failed meanwhile comes there by
`fail`, with its error, and every rank raises it: none waits for what will not be sent.

Every method is a collective call: `largest` and `fail`, which meet, of the engine group, the others of the column.
"""

import logging
import os
import pickle
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist

logger = logging.getLogger(__file__)
logger.setLevel(os.getenv("VERL_LOGGING_LEVEL", "WARN"))

# How long a rank that has failed waits for the others, which may hang in a collective of the model, to tell them.
PATIENCE = timedelta(seconds=60)
# Values of one `largest`: every call sends as many, for a rank that fails does not know which one the others are in.
VALUES = 3


class RebalanceError(RuntimeError):
    """A rank of the engine group has failed; every rank raises it."""


class Column:
    """The data-parallel ranks that share this process' tensor-parallel rank.

    Making it is a collective call of the whole torch world, for `torch.distributed.new_group` is.

    Args:
        group: verl.workers.rollout.data_parallel.EngineGroup of this process.
    """

    def __init__(self, group) -> None:
        self.rank, self.size = group.dp_rank, group.dp_size
        for index in range(group.count):
            first = index * group.size
            everyone = dist.new_group(list(range(first, first + group.size)), backend="gloo")
            if index == group.index:
                self._everyone = everyone
            for tp_rank in range(group.tp_size):
                first = index * group.size + tp_rank
                ranks = list(range(first, first + group.size, group.tp_size))
                control = dist.new_group(ranks, backend="gloo")
                # The world's backend is that of device tensors, alone or beside gloo.
                blocks = control if dist.get_backend() == "gloo" else dist.new_group(ranks)
                if ranks == group.dp_ranks:
                    self._control, self._blocks = control, blocks

    def largest(self, values: Sequence[int] = ()) -> list[int]:
        """The largest over the ranks, of each of the values, at most VALUES. Raises RebalanceError if a rank fails."""
        return self._meet([0, *values])[: len(values)]

    def fail(self, cause: Exception) -> NoReturn:
        """Lets every rank raise RebalanceError with this rank and the cause; this one alone if nobody else comes."""
        logger.error("rollout_rebalance: this rank has failed and tells the others", exc_info=cause)
        self._meet([1], cause)
        raise cause  # not reached

    def _meet(self, values: Sequence[int], cause: Exception | None = None) -> list[int]:
        tensor = torch.zeros(1 + VALUES, dtype=torch.int64)
        tensor[: len(values)] = torch.tensor(values)
        said = f"data-parallel rank {self.rank}: {type(cause).__name__}: {cause}" if cause else None
        try:
            work = dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self._everyone, async_op=True)
            work.wait(*[PATIENCE] if cause else [])
        except RuntimeError:
            if not cause:
                raise
            raise RebalanceError(f"rebalance, {said}; the others were not told, they did not come") from cause
        failed, *largest = tensor.tolist()
        if failed:
            found: list[str | None] = [None] * dist.get_world_size(self._everyone)
            dist.all_gather_object(found, said, group=self._everyone)
            raise RebalanceError(f"rebalance, {next(filter(None, found))}") from cause
        return largest

    def exchange(self, objects: Sequence[Any]) -> list[Any]:
        """Sends one object to each rank, itself too, and returns what each sent here. Sizes go first.

        Python objects, pickled: the senders are ranks of the same engine. Raises whatever pickling raises, before
        anything is sent, and RebalanceError if another rank fails.
        """
        packed = [pickle.dumps(one, protocol=pickle.HIGHEST_PROTOCOL) for one in objects]
        self.largest()
        sizes = torch.tensor([len(one) for one in packed], dtype=torch.int64)
        coming = torch.empty_like(sizes)
        dist.all_to_all_single(coming, sizes, group=self._control)
        sent = torch.frombuffer(bytearray(b"".join(packed)), dtype=torch.uint8)
        received = torch.empty(int(coming.sum()), dtype=torch.uint8)
        dist.all_to_all_single(received, sent, coming.tolist(), sizes.tolist(), group=self._control)
        return [pickle.loads(part.numpy().tobytes()) for part in received.split(coming.tolist())]

    def exchange_elements(self, sent: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
        """Sends flat tensors of one dtype and device, one to each rank; `sizes` are those that come. As `exchange`."""
        flat = torch.cat(list(sent))
        received = flat.new_empty(sum(sizes))
        self.largest()
        dist.all_to_all_single(received, flat, list(sizes), [one.numel() for one in sent], group=self._blocks)
        return list(received.split(list(sizes)))
