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
"""Micro-batches whose sequences are on different ranks: which, how they are packed there, and how results come back."""

import math
from dataclasses import dataclass, field
from functools import cached_property

import torch
import torch.distributed as dist
from megatron.core import parallel_state as mpu
from megatron.core.packed_seq_params import PackedSeqParams

from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions

from .groups import BlockGroups, make_groups
from .packing import CostModel, Packing, padded_length

# A column of each micro-batch: of every sequence the first of its ranks in the context parallel group, and how many.
RANKS = "hdp_ranks"


@dataclass(frozen=True)
class MicroBatches:
    """Cuts a batch into micro-batches and chooses the ranks of each sequence. `max_token_len` is that of all ranks.

    With `by_time` micro-batches are chosen for the time that they take; otherwise they are upstream's where those fit.
    """

    max_token_len: int
    by_time: bool = False
    cost: CostModel = field(default_factory=CostModel)
    # What was found for the number that this rank needs, which mostly is the one that all agree on.
    _found: dict[int, list[list[int]]] = field(default_factory=dict, init=False, compare=False)

    @classmethod
    def of_rows(cls, count: int, width: int, cost: CostModel) -> "MicroBatches":
        """For micro-batches of `count` rows of `width` tokens, all of which may be filled."""
        ranks, tensor_parallel = mpu.get_context_parallel_world_size(), mpu.get_tensor_model_parallel_world_size()
        return cls(count * padded_length(width, ranks, tensor_parallel), cost=cost)

    def packing(self) -> Packing:
        ranks, tensor_parallel = mpu.get_context_parallel_world_size(), mpu.get_tensor_model_parallel_world_size()
        # Upstream's maximum does not count padding. Rounded up like this, a sequence of that length still fits.
        align = 2 * tensor_parallel
        return Packing(ranks, math.ceil(self.max_token_len / ranks / align) * align, tensor_parallel, self.cost)

    def enough(self, lengths: list[int], count: int) -> int:
        """How many micro-batches this data parallel rank needs, `count` or more. `partition` of them comes next."""
        packing = self.packing()
        choose = packing.fastest if self.by_time else packing.partition
        found = choose(lengths, count, _balanced)
        self._found[len(found)] = found
        return len(found)

    def partition(self, lengths: list[int], count: int) -> list[list[int]]:
        """Indices of the sequences of each of `count` micro-batches."""
        packing = self.packing()
        choose = packing.fastest_exactly if self.by_time else packing.exactly
        return self._found.pop(count, None) or choose(lengths, count, _balanced)

    def weight(self, rows: int, all_rows: int, count: int) -> float:
        """What the loss of one of `count` micro-batches counts, where the mean over them is formed afterwards.

        By time they have very different numbers of sequences, so each counts as many, as verl's dp_actor has it.
        """
        return rows * count / all_rows if self.by_time else 1.0

    def with_ranks(self, micro_batch):
        """The micro-batch with the column of ranks."""
        lengths = micro_batch["attention_mask"].sum(dim=1).tolist()
        ranks = torch.zeros(len(lengths), 2, dtype=torch.int64)
        for group in self.packing().layout(lengths):
            ranks[list(group.sequences)] = torch.tensor([group.first, group.ranks])
        micro_batch[RANKS] = ranks.to(micro_batch["attention_mask"].device)
        return micro_batch


def _balanced(lengths: list[int], parts: int) -> list[list[int]]:
    return get_seqlen_balanced_partitions(lengths, parts, equal_size=False)


@dataclass(frozen=True)
class Rows:
    """The packed tokens of one rank: `target` of them come from `source`, an index into the valid tokens of the batch.

    The others are padding. `bounds` are the cumulated padded lengths of its sequences, over all ranks of the block.
    """

    tokens: int
    target: torch.Tensor
    source: torch.Tensor
    bounds: list[int]
    longest: int


class PackedMicroBatch:
    """One micro-batch on this rank; its methods stand for preprocess_packed_seqs and postprocess_packed_seqs."""

    def __init__(self, ranks: torch.Tensor, attention_mask: torch.Tensor, overlap: bool):
        self.blocks: list[tuple[int, int]] = [(first, size) for first, size in ranks.tolist()]
        self.lengths: list[int] = attention_mask.sum(dim=-1, dtype=torch.int32).tolist()
        self.device, self.cp_size = attention_mask.device, mpu.get_context_parallel_world_size()
        self.place, self.tensor_parallel = mpu.get_context_parallel_rank(), mpu.get_tensor_model_parallel_world_size()
        self.valid = attention_mask.flatten().nonzero().squeeze(1)
        self.own = self._rows_of(self.place)
        self.groups: BlockGroups | None = self._own_groups(overlap)

    def preprocess(self, rows: torch.Tensor, attention_mask: torch.Tensor, pre_process: bool = True):
        """This rank's tokens of `rows` [batch, length, ...] as [1, tokens, ...], and what attention has to know."""
        if not pre_process:
            return rows, self._packed_seq_params()
        packed = torch.zeros((self.own.tokens, *rows.shape[2:]), dtype=rows.dtype, device=rows.device)
        packed[self._target] = rows.flatten(0, 1)[self._source]
        return packed.unsqueeze(0), self._packed_seq_params()

    def postprocess(self, output, packed_seq_params, attention_mask, batch_size, seq_len, post_process=True):
        """[batch, length, ...] of the whole micro-batch out of each rank's [1, tokens, ...].

        What comes from other ranks is a copy without a gradient; this rank's own tokens keep theirs. So each rank's
        backward pass is that of its own tokens, and the sum over ranks, which Megatron forms, is that of all: as
        upstream has it for plain context parallelism.
        """
        if not post_process:
            return output
        own = output[0][self._target]
        counts, where = self._results
        parts = self._received(own.detach(), counts)
        parts[self.place] = own
        whole = torch.zeros((batch_size * seq_len, *output.shape[2:]), dtype=output.dtype, device=output.device)
        return whole.index_copy(0, where, torch.cat(parts)).view(batch_size, seq_len, *output.shape[2:])

    def _received(self, own: torch.Tensor, counts: list[int]) -> list[torch.Tensor]:
        """The valid tokens of every other rank, no padding among them; of this rank nothing."""
        counts = [0 if place == self.place else count for place, count in enumerate(counts)]
        to_send = [0 if place == self.place else len(own) for place in range(self.cp_size)]
        received = own.new_empty((sum(counts), *own.shape[1:]))
        dist.all_to_all_single(
            received,
            torch.cat([own] * (self.cp_size - 1)),
            output_split_sizes=counts,
            input_split_sizes=to_send,
            group=mpu.get_context_parallel_group(),
        )
        return list(received.split(counts))

    # Kept on the device, since each of ids, labels, log-probabilities and entropies asks for them.

    @cached_property
    def _target(self) -> torch.Tensor:
        return self.own.target.to(self.device)

    @cached_property
    def _source(self) -> torch.Tensor:
        return self.valid[self.own.source.to(self.device)]

    @cached_property
    def _bounds(self) -> torch.Tensor:
        return torch.tensor(self.own.bounds, dtype=torch.int32, device=self.device)

    @cached_property
    def _results(self) -> tuple[list[int], torch.Tensor]:
        """How many valid tokens each rank has, and where they go in the batch, rank after rank."""
        rows = [self.own if place == self.place else self._rows_of(place) for place in range(self.cp_size)]
        where = self.valid[torch.cat([row.source for row in rows]).to(self.device)]
        return [len(row.source) for row in rows], where

    def _rows_of(self, place: int) -> Rows:
        """Where the tokens of a rank come from: of each sequence the n-th chunk and the n-th from the end."""
        targets, sources, bounds, start, longest = [], [], [0], 0, 0
        offset = 0
        for (first, size), length in zip(self.blocks, self.lengths, strict=True):
            if first <= place < first + size:
                padded = padded_length(length, size, self.tensor_parallel)
                positions = _positions(padded, size, place - first)
                kept = positions < length
                targets.append(start + kept.nonzero().squeeze(1))
                sources.append(offset + positions[kept])
                bounds.append(bounds[-1] + padded)
                start += padded // size
                longest = max(longest, padded)
            offset += length
        return Rows(start, torch.cat(targets), torch.cat(sources), bounds, longest)

    def _own_groups(self, overlap: bool) -> BlockGroups | None:
        (block,) = {(first, size) for first, size in self.blocks if first <= self.place < first + size}
        # None stands for the whole group: then all is as in plain context parallelism.
        return None if block[1] == self.cp_size else make_groups(overlap)[block]

    def _packed_seq_params(self) -> PackedSeqParams:
        params = PackedSeqParams(
            qkv_format="thd",
            cu_seqlens_q=self._bounds,
            max_seqlen_q=self.own.longest,
            cu_seqlens_kv=self._bounds,
            max_seqlen_kv=self.own.longest,
            cu_seqlens_q_padded=self._bounds,
            cu_seqlens_kv_padded=self._bounds,
        )
        if self.groups is not None:
            params.cp_group, params.cp_overlap_group = self.groups
        return params


def _positions(padded: int, size: int, place: int) -> torch.Tensor:
    """Which tokens of a sequence of `padded` tokens the rank at `place` of `size` has."""
    if size == 1:
        return torch.arange(padded)
    chunk = padded // (2 * size)
    last = padded - place * chunk
    return torch.cat([torch.arange(place * chunk, (place + 1) * chunk), torch.arange(last - chunk, last)])
