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
"""Which ranks of a context parallel group take which sequences of a micro-batch: pure functions, no torch.

A layout cuts the ranks of the group into blocks. A block's size divides that of the group and its first rank is a
multiple of its size, so a rank is in one block of each size and needs one process group for each, seven for 64 ranks.
The sequences of a block are split over all of its ranks, as context parallelism splits them over the whole group; a
block of one rank splits nothing and needs no ring.

A layout is found by halving (or cutting by another prime factor): the sequences of a block, longest first, go to the
part that has least to do, each part is laid out in the same way, and the cut is kept if the slowest part is faster than
the whole block. What is left as it was is plain context parallelism. Then sequences move from the slowest block to
others as long as that helps. In groups of up to eight ranks all ways to cut them are tried too. Everything goes by
lengths and their order, so every rank finds the same layout.

Micro-batches chosen for time are made from below: each sequence in a bin of the fewest ranks that have room for it,
bins of about the same time, and then bins of one size, next to each other by time, joined to the next larger size.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

# Bounds on what is tried after the cut, so that a call stays under 10 ms: changes, blocks that a sequence may move to
# (those with least to do), pairs that may change places, and how near to the mean the slowest block is good enough.
ROUNDS, TARGETS, PAIRS, NEAR = 16, 3, 100, 1.005
# Sequences times ranks up to which whole sequences on single ranks are tried too: 2 ms; larger ones have no need of it.
WHOLE = 2048
# Groups up to this size are laid out by all ways to cut them too, where sequences times ranks are at most the other.
TILED, TILED_WORK = 8, 1024
# How many micro-batches are tried, in those that tokens need at least, and what a smaller number may take longer.
MORE, FEWER = (1.0, 1.1, 1.2, 1.3, 1.5), 1.01


@dataclass(frozen=True)
class CostModel:
    """How long a block is busy, in the time that one token takes for all but attention on one rank.

    Args:
        quadratic_length: length in tokens at which a sequence's attention costs as much as everything else; `of` counts
            it for a model, 28,000 is about Qwen3-235B's.
        ring_share: what a token of a rank adds in each step of a ring (its keys and values are sent and received, and
            the step's output is merged). 0.3 follows from a published pair of training times of that model with
            context parallel sizes 8 and 4, 1,654 s and 1,057 s, if nothing but the ring made the difference.
        ring_step: what a step costs whatever is in it, in the same unit.
    """

    quadratic_length: float = 28_000.0
    ring_share: float = 0.3
    ring_step: float = 50.0

    @classmethod
    def of(cls, config: Any, costs: Mapping[str, float | None] | None = None) -> "CostModel":
        """That of a model, with what is known better in `costs` (see `known_costs`, and what it raises).

        By operations of the forward pass: a token takes 2 for each weight of a layer that it meets, and 2 for each
        channel of all query heads and each token of its sequence, half of which it attends to. The vocabulary's
        weights are left out: they are on one pipeline stage.

        Args:
            config: Megatron's TransformerConfig, or what has its names.
        """
        channels = config.num_layers * config.num_attention_heads * config.kv_channels
        return cls(**({"quadratic_length": _active_weights(config) / channels} | known_costs(costs or {})))

    def sequences(self, lengths: Sequence[int], ranks: int) -> list[float]:
        """What each sequence of these lengths (padding included), split over `ranks`, adds to each of them."""
        linear = (1.0 + (ranks - 1) * self.ring_share) / ranks
        attention = 1.0 / (ranks * self.quadratic_length)
        return [length * (linear + length * attention) for length in lengths]

    def block(self, ranks: int) -> float:
        """What the ring of a block of `ranks` costs whatever its sequences are."""
        return (ranks - 1) * self.ring_step


def known_costs(costs: Mapping[str, float | None]) -> dict[str, float]:
    """Those that are set. Raises ValueError for a name that the cost model does not have, or what is no cost."""
    names = [each.name for each in fields(CostModel)]
    for name, value in costs.items():
        if name not in names:
            raise ValueError(f"{name}: there are {', '.join(names)}")
        least = "above 0" if name == "quadratic_length" else "0 or more"
        number = type(value) in (int, float) and 0 <= value < math.inf and (value > 0 or least == "0 or more")
        if value is not None and not number:
            raise ValueError(f"{name}={value!r} is no number {least}; null leaves it to the patch")
    return {name: float(value) for name, value in costs.items() if value is not None}


def _active_weights(config: Any) -> int:
    """Weights of all layers that one token is multiplied with, the experts that it is not sent to left out."""
    width, experts = config.hidden_size, config.num_moe_experts
    attention = 2 * width * config.kv_channels * (config.num_attention_heads + config.num_query_groups)
    matrices = 3 if config.gated_linear_unit else 2
    sparse = 0
    if experts:
        every = config.moe_layer_freq
        sparse = sum(every) if isinstance(every, list) else -(-config.num_layers // every)
    found = config.num_layers * attention + (config.num_layers - sparse) * matrices * width * config.ffn_hidden_size
    if sparse:
        shared = config.moe_shared_expert_intermediate_size or 0
        chosen = config.moe_router_topk * config.moe_ffn_hidden_size
        found += sparse * width * (matrices * (chosen + shared) + experts)
    return found


@dataclass(frozen=True)
class Group:
    """Sequences (indices, ascending) that ranks `first` to `first + ranks - 1` of the group share."""

    first: int
    ranks: int
    sequences: tuple[int, ...]


def alignment(ranks: int, tensor_parallel: int) -> int:
    """What a sequence is padded to a multiple of, for `ranks` to have equal parts that tensor parallelism divides.

    Two chunks a rank, the n-th and the n-th from the end, balance causal attention (upstream: preprocess_packed_seqs).
    """
    return tensor_parallel * (2 * ranks if ranks > 1 else 1)


def padded_length(length: int, ranks: int, tensor_parallel: int) -> int:
    """Tokens of a sequence, padding included, when it is split over `ranks`."""
    align = alignment(ranks, tensor_parallel)
    return -(-length // align) * align


def tokens_of_rank(lengths: Sequence[int], ranks: int, tensor_parallel: int) -> int:
    """Tokens that each of `ranks` holds when sequences of these lengths are split over all of them."""
    return sum(padded_length(length, ranks, tensor_parallel) for length in lengths) // ranks


def layout(
    lengths: Sequence[int], ranks: int, max_tokens: int, tensor_parallel: int = 1, cost: CostModel | None = None
) -> list[Group]:
    """Lays the sequences of one micro-batch out on `ranks` ranks; no rank gets more than `max_tokens`.

    It is never slower, by `cost`, than plain context parallelism, which is the layout with one group; every group has a
    sequence. Raises ValueError for no sequences, a length below 1, and where no layout is found that fits.
    """
    if not lengths or min(lengths) < 1 or ranks < 1:
        raise ValueError(f"there must be sequences of 1 token or more, and 1 rank or more: {list(lengths)}, {ranks}")
    groups = find_layout(lengths, ranks, max_tokens, tensor_parallel, cost)
    if groups is None:
        needed = tokens_of_rank(lengths, ranks, tensor_parallel)
        raise ValueError(
            f"{len(lengths)} sequences of up to {max(lengths)} tokens need {needed} tokens on each of {ranks} ranks, "
            f"and {max_tokens} are allowed; raise the maximum of tokens or make the micro-batch smaller"
        )
    return groups


def find_layout(
    lengths: Sequence[int], ranks: int, max_tokens: int, tensor_parallel: int = 1, cost: CostModel | None = None
) -> list[Group] | None:
    """`layout`, or None where none is found that fits."""
    packer = _Packer(lengths, max_tokens, tensor_parallel, cost or CostModel())
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    slowest_cost, blocks = packer.cut(0, ranks, order)
    blocks = packer.improved(blocks) if slowest_cost < math.inf else []
    if ranks <= TILED and len(lengths) * ranks <= TILED_WORK:
        blocks = packer.tiled(ranks, order, blocks)
    whole = packer.whole(ranks, max((block.cost for block in blocks), default=math.inf))
    if whole:
        blocks = packer.improved(whole)
    if not blocks:
        return None
    return [Group(block.first, block.ranks, tuple(sorted(block.sequences))) for block in blocks]


def slowest(
    groups: Sequence[Group], lengths: Sequence[int], tensor_parallel: int = 1, cost: CostModel | None = None
) -> float:
    """The time of the slowest group, in the unit of the cost model: the others wait for it."""
    return max(group_costs(groups, lengths, tensor_parallel, cost))


def group_costs(
    groups: Sequence[Group], lengths: Sequence[int], tensor_parallel: int = 1, cost: CostModel | None = None
) -> list[float]:
    """The time of each group, in the unit of the cost model."""
    model, found = cost or CostModel(), []
    for group in groups:
        padded = [padded_length(lengths[index], group.ranks, tensor_parallel) for index in group.sequences]
        found.append(model.block(group.ranks) + sum(model.sequences(padded, group.ranks)))
    return found


def plain(lengths: Sequence[int], ranks: int) -> list[Group]:
    """Plain context parallelism as a layout: every sequence is split over all ranks."""
    return [Group(0, ranks, tuple(range(len(lengths))))]


class _Block:
    """A group that is being worked on: `cost` and `tokens` are those of each of its ranks."""

    __slots__ = ("cost", "first", "ranks", "sequences", "tokens")

    def __init__(self, first: int, ranks: int, cost: float) -> None:
        self.first, self.ranks, self.cost, self.tokens = first, ranks, cost, 0
        self.sequences: list[int] = []

    def add_load(self, cost: float, tokens: int) -> None:
        self.cost += cost
        self.tokens += tokens


class _Packer:
    def __init__(self, lengths: Sequence[int], max_tokens: int, tensor_parallel: int, cost: CostModel) -> None:
        self.lengths, self.max_tokens, self.tensor_parallel, self.cost = lengths, max_tokens, tensor_parallel, cost
        self.tables: dict[int, tuple[list[float], list[int]]] = {}

    def table(self, ranks: int) -> tuple[list[float], list[int]]:
        """What each sequence costs a rank, and its tokens there, when it is split over `ranks`."""
        if ranks not in self.tables:
            align = alignment(ranks, self.tensor_parallel)
            padded = [-(-length // align) * align for length in self.lengths]
            self.tables[ranks] = (self.cost.sequences(padded, ranks), [length // ranks for length in padded])
        return self.tables[ranks]

    def cut(self, first: int, ranks: int, order: list[int]) -> tuple[float, list[_Block]]:
        """The best layout found of the sequences (longest first) on a block, and the cost of its slowest group."""
        whole = _Block(first, ranks, self.cost.block(ranks))
        costs, tokens = self.table(ranks)
        whole.sequences = list(order)
        whole.add_load(sum([costs[index] for index in order]), sum([tokens[index] for index in order]))
        best, blocks = whole.cost if whole.tokens <= self.max_tokens else math.inf, [whole]
        # All prime factors where that costs little: 12 ranks are 2 x 6 and 3 x 4, which is not the same.
        for parts in _prime_factors(ranks)[: None if ranks <= 16 else 1]:
            dealt = self.deal(first, ranks // parts, parts, order)
            if dealt is None:
                continue
            cuts = [self.cut(part.first, part.ranks, part.sequences) for part in dealt]
            slowest_part = max(cost for cost, _ in cuts)
            if slowest_part < best:
                best, blocks = slowest_part, [block for _, found in cuts for block in found]
        return best, blocks

    def deal(self, first: int, ranks: int, parts: int, order: list[int]) -> list[_Block] | None:
        """The sequences, longest first, each to the part with least to do that has room; None if one finds none.

        Sequences are padded less where a part is cut further, so room is looked for without padding if there is none.
        """
        if len(order) < parts:
            return None
        tokens = self.table(ranks)[1]
        dealt = self._deal(first, ranks, parts, order, tokens)
        return dealt or self._deal(first, ranks, parts, order, [-(-length // ranks) for length in self.lengths])

    def _deal(self, first: int, ranks: int, parts: int, order: list[int], tokens: list[int]) -> list[_Block] | None:
        costs = self.table(ranks)[0]
        dealt = [_Block(first + part * ranks, ranks, 0.0) for part in range(parts)]
        for index in order:
            room, target = self.max_tokens - tokens[index], None
            for block in dealt:
                if block.tokens <= room and (target is None or block.cost < target.cost):
                    target = block
            if target is None:
                return None
            target.sequences.append(index)
            target.cost += costs[index]
            target.tokens += tokens[index]
        return dealt

    def tiled(self, ranks: int, order: list[int], blocks: list[_Block]) -> list[_Block]:
        """The fastest of `blocks` and of all ways to cut the ranks, sequences dealt to each, longest first."""
        beat = max((block.cost for block in blocks), default=math.inf)
        for sizes in _tilings(ranks, ranks):
            found = self.placed(sizes, order) if len(sizes) <= len(order) else None
            found = found and self.improved(found)
            if found and max(block.cost for block in found) < beat:
                blocks, beat = found, max(block.cost for block in found)
        return blocks

    def placed(self, sizes: tuple[int, ...], order: list[int]) -> list[_Block] | None:
        """Blocks of these sizes, each sequence where it ends first; None if one finds no room or a block has none."""
        blocks = [_Block(sum(sizes[:place]), size, self.cost.block(size)) for place, size in enumerate(sizes)]
        tables = [self.table(size) for size in sizes]
        for index in order:
            fitting = [
                (block.cost + costs[index], place)
                for place, (block, (costs, tokens)) in enumerate(zip(blocks, tables, strict=True))
                if block.tokens + tokens[index] <= self.max_tokens
            ]
            if not fitting:
                return None
            _, place = min(fitting)
            costs, tokens = tables[place]
            blocks[place].sequences.append(index)
            blocks[place].add_load(costs[index], tokens[index])
        return blocks if all(block.sequences for block in blocks) else None

    def composed(self, ranks: int, count: int) -> list[list[int]]:
        """Indices of about `count` micro-batches of about the same time on every rank; a sequence has to fit on all."""
        sizes = [1, *itertools.accumulate(_all_prime_factors(ranks), int.__mul__)]
        levels: dict[int, list[int]] = {size: [] for size in sizes}
        for index in sorted(range(len(self.lengths)), key=lambda index: (-self.lengths[index], index)):
            levels[next(size for size in sizes if self.table(size)[1][index] <= self.max_tokens)].append(index)
        left = ranks * count
        time = sum(size * self.table(size)[0][index] for size in sizes for index in levels[size]) / left
        bins: dict[int, list[_Block]] = {size: [] for size in sizes}
        # What larger bins leave is for bins of one rank, so that their ranks are those of whole micro-batches.
        for size in reversed(sizes):
            if levels[size]:
                busy = sum(self.table(size)[0][index] for index in levels[size])
                bins[size] = self.binned(size, left if size == 1 else round(busy / time), levels[size])
                left -= size * len(bins[size])
        for size, larger in itertools.pairwise(sizes):
            bins[size].sort(key=lambda block: (-block.cost, block.sequences))
            bins[larger] += self.joined(bins[size], larger)
        return [sorted(block.sequences) for block in bins[ranks]]

    def binned(self, size: int, number: int, order: list[int]) -> list[_Block]:
        """About `number` blocks of `size` ranks with these sequences, each to the one with least to do, or more."""
        costs, tokens = self.table(size)
        number = max(number, 1, -(-sum(tokens[index] for index in order) // self.max_tokens))
        blocks = [_Block(0, size, self.cost.block(size)) for _ in range(min(number, len(order)))]
        for index in order:
            fitting = [block for block in blocks if block.tokens + tokens[index] <= self.max_tokens]
            if not fitting:
                fitting = [_Block(0, size, self.cost.block(size))]
                blocks += fitting
            block = min(fitting, key=lambda block: block.cost)
            block.sequences.append(index)
            block.add_load(costs[index], tokens[index])
        return blocks

    def joined(self, blocks: list[_Block], ranks: int) -> list[_Block]:
        """Blocks of `ranks` of these smaller ones, slowest first; those that remain are split over all of `ranks`."""
        found, parts = [], ranks // blocks[0].ranks if blocks else 1
        costs = self.table(ranks)[0]
        rest = len(blocks) % parts
        for start in range(0, len(blocks) - rest, parts):
            found.append(_Block(0, ranks, blocks[start].cost))
            found[-1].sequences = [index for block in blocks[start : start + parts] for index in block.sequences]
        for block in blocks[len(blocks) - rest :]:
            found.append(_Block(0, ranks, self.cost.block(ranks) + sum(costs[index] for index in block.sequences)))
            found[-1].sequences = block.sequences
        return found

    def whole(self, ranks: int, beat: float) -> list[_Block] | None:
        """Each sequence whole on a rank, by the largest differencing method, if that fits and is faster than `beat`.

        Cutting finds no room where whole sequences just fit, since it deals them one by one.
        """
        costs, tokens = self.table(1)
        if not ranks <= len(costs) <= WHOLE // ranks or beat * ranks <= sum(costs) * NEAR:
            return None
        blocks = []
        for rank, part in enumerate(_differencing(costs, ranks)):
            block = _Block(rank, 1, self.cost.block(1))
            block.sequences = part
            block.add_load(sum([costs[index] for index in part]), sum([tokens[index] for index in part]))
            blocks.append(block)
        fits = all(block.sequences and block.tokens <= self.max_tokens for block in blocks)
        return blocks if fits and max(block.cost for block in blocks) < beat else None

    def improved(self, blocks: list[_Block]) -> list[_Block]:
        """Moves and exchanges sequences of the slowest block while that makes it faster, ROUNDS times at most."""
        total = sum(block.cost * block.ranks for block in blocks)
        ranks = sum(block.ranks for block in blocks)
        for _ in range(ROUNDS):
            source = max(blocks, key=lambda block: block.cost)
            if source.cost * ranks < total * NEAR:
                break
            targets = sorted((block for block in blocks if block is not source), key=lambda block: block.cost)
            found = min(
                (change for target in targets[:TARGETS] for change in self.changes(source, target)), default=None
            )
            if found is None or found[0] >= source.cost:
                break
            _, first, give, take = found
            target = next(block for block in targets if block.first == first)
            self.move(give, source, target)
            if take >= 0:
                self.move(take, target, source)
        return blocks

    def changes(self, source: _Block, target: _Block) -> Iterator[tuple[float, int, int, int]]:
        """(cost of the slower of both afterwards, target's first rank, sequence given, sequence taken or -1)."""
        own_costs, own_tokens = self.table(source.ranks)
        costs, tokens = self.table(target.ranks)
        if len(source.sequences) > 1:
            for give in source.sequences:
                if target.tokens + tokens[give] <= self.max_tokens:
                    after = max(target.cost + costs[give], source.cost - own_costs[give])
                    yield after, target.first, give, -1
        if len(source.sequences) * len(target.sequences) > PAIRS:
            return
        for give in source.sequences:
            for take in target.sequences:
                if (
                    self.lengths[take] < self.lengths[give]
                    and target.tokens + tokens[give] - tokens[take] <= self.max_tokens
                    and source.tokens + own_tokens[take] - own_tokens[give] <= self.max_tokens
                ):
                    grown = target.cost + costs[give] - costs[take]
                    yield max(grown, source.cost + own_costs[take] - own_costs[give]), target.first, give, take

    def move(self, sequence: int, source: _Block, target: _Block) -> None:
        costs, tokens = self.table(source.ranks)
        source.sequences.remove(sequence)
        source.add_load(-costs[sequence], -tokens[sequence])
        costs, tokens = self.table(target.ranks)
        target.sequences.append(sequence)
        target.add_load(costs[sequence], tokens[sequence])


def _differencing(weights: Sequence[float], parts: int) -> list[list[int]]:
    """Indices in `parts` parts of similar weight, by Karmarkar and Karp's method (upstream's, which imports torch)."""
    heap = [(-weight, order, [(weight, [order])] + [(0.0, [])] * (parts - 1)) for order, weight in enumerate(weights)]
    heapq.heapify(heap)
    for order in range(len(heap), 2 * len(heap) - 1):
        left, right = heapq.heappop(heap)[2], heapq.heappop(heap)[2]
        # The heaviest of one joins the lightest of the other.
        merged = [(a + b, one + other) for (a, one), (b, other) in zip(left, reversed(right), strict=True)]
        merged.sort(key=lambda part: -part[0])
        heapq.heappush(heap, (merged[-1][0] - merged[0][0], order, merged))
    return [indices for _, indices in heap[0][2]]


@cache
def _tilings(ranks: int, largest: int) -> list[tuple[int, ...]]:
    """All ways to fill `ranks` with blocks, largest first, each a divisor of the one before, none above `largest`."""
    if not ranks:
        return [()]
    sizes = [size for size in range(min(ranks, largest), 0, -1) if largest % size == 0]
    return [(size, *rest) for size in sizes for rest in _tilings(ranks - size, size)]


def _prime_factors(number: int) -> list[int]:
    """The different ones, smallest first."""
    return sorted(set(_all_prime_factors(number)))


def _all_prime_factors(number: int) -> list[int]:
    """Smallest first; their product is the number."""
    factor = next((factor for factor in range(2, number + 1) if number % factor == 0), None)
    return [factor, *_all_prime_factors(number // factor)] if factor else []


Partition = Callable[[list[int], int], list[list[int]]]


@dataclass(frozen=True)
class Packing:
    """What all micro-batches of a run have in common: ranks, the most tokens of one, tensor parallel size and costs."""

    ranks: int
    max_tokens: int
    tensor_parallel: int = 1
    cost: CostModel = CostModel()

    def layout(self, lengths: Sequence[int]) -> list[Group]:
        """See `layout`."""
        return layout(lengths, self.ranks, self.max_tokens, self.tensor_parallel, self.cost)

    def fastest(self, lengths: Sequence[int], count: int, partition: Partition) -> list[list[int]]:
        """Indices of `count` micro-batches or more, of those tried the fewest that take 1 % more than the least time.

        Time is that of the slowest group, summed over micro-batches: by the cost model one more costs nothing, so more
        are made where that balances them. What `partition` gives is tried too; raises ValueError as that method does.
        """
        given = self.partition(lengths, count, partition)
        found = [(self.time(lengths, given), given)]
        packer = _Packer(lengths, self.max_tokens, self.tensor_parallel, self.cost)
        for number in sorted({min(len(lengths), math.ceil(count * more)) for more in MORE}):
            parts = packer.composed(self.ranks, number)
            if len(parts) >= count and self._all_fit(lengths, parts):
                found.append((self.time(lengths, parts), parts))
        least = min(time for time, _ in found)
        return min((parts for time, parts in found if time <= least * FEWER), key=len)

    def fastest_exactly(self, lengths: Sequence[int], count: int, partition: Partition) -> list[list[int]]:
        """Indices of exactly `count` micro-batches, `fastest` of this number or fewer, the longest of them divided.

        `count` is what all data parallel ranks agreed on, no less than `fastest` gave this one.
        """
        packer = _Packer(lengths, self.max_tokens, self.tensor_parallel, self.cost)
        tried = (packer.composed(self.ranks, number) for number in range(count, count * 3 // 4, -1))
        parts = next((parts for parts in tried if len(parts) <= count and self._all_fit(lengths, parts)), None)
        return self._divided(lengths, parts or self.exactly(lengths, count, partition), count)

    def time(self, lengths: Sequence[int], parts: list[list[int]]) -> float:
        """The sum over micro-batches of the slowest group's time."""
        found = 0.0
        for part in parts:
            chosen = [lengths[index] for index in part]
            found += slowest(self.layout(chosen), chosen, self.tensor_parallel, self.cost)
        return found

    def partition(self, lengths: Sequence[int], count: int, partition: Partition) -> list[list[int]]:
        """Indices of `count` micro-batches or, where the tokens need them, of more, each with a layout that fits.

        `partition` (upstream's Karmarkar-Karp) balances lengths but knows no maximum, and takes seconds for thousands
        of sequences. So the number is found by dealing, and `partition` is asked once: micro-batches are upstream's
        wherever those fit. Raises ValueError where a sequence fits nowhere, for fewer sequences than `count`, and for
        a maximum that two tokens of each rank's chunks exceed: then a part of what fits need not fit.
        """
        least = alignment(self.ranks, self.tensor_parallel)
        if self.max_tokens < least:
            what = f"a maximum of {self.max_tokens} tokens on a rank is too small"
            raise ValueError(f"{what}; it has to be {least} or more")
        if count > len(lengths):
            raise ValueError(f"{len(lengths)} sequences cannot fill {count} micro-batches")
        self.layout([max(lengths)])
        parts = count
        while parts < len(lengths) and not self._all_fit(lengths, _dealt(lengths, parts)):
            parts += max(1, parts // 64)
        if parts >= len(lengths):
            return [[index] for index in range(len(lengths))]
        return self._as_many(lengths, parts, partition) or _dealt(lengths, parts)

    def exactly(self, lengths: Sequence[int], count: int, partition: Partition) -> list[list[int]]:
        """Indices of exactly `count` micro-batches: what all data parallel ranks agreed on, and enough for this one.

        Where that many parts happen not to fit, fewer that do are made, and the longest of those divided.
        """
        found = self._as_many(lengths, count, partition) or self.partition(lengths, 1, _dealt)
        if len(found) > count:
            raise ValueError(f"no {count} micro-batches or fewer of {list(lengths)} tokens fit")
        return self._divided(lengths, found, count)

    def _divided(self, lengths: Sequence[int], found: list[list[int]], count: int) -> list[list[int]]:
        while len(found) < count:
            largest = max(found, key=lambda part: (len(part) > 1, sum(lengths[index] for index in part), -part[0]))
            found.remove(largest)
            found += [largest[0::2], largest[1::2]]
        return found

    def _as_many(self, lengths: Sequence[int], count: int, partition: Partition) -> list[list[int]] | None:
        """`count` micro-batches by `partition` or, where those do not fit, by dealing; None where neither do."""
        tried = (method(list(lengths), count) for method in (partition, _dealt))
        return next((found for found in tried if self._all_fit(lengths, found)), None)

    def _all_fit(self, lengths: Sequence[int], parts: list[list[int]]) -> bool:
        return all(self._fits(lengths, part) for part in parts)

    def _fits(self, lengths: Sequence[int], part: list[int]) -> bool:
        chosen = [lengths[index] for index in part]
        return find_layout(chosen, self.ranks, self.max_tokens, self.tensor_parallel, self.cost) is not None


def _dealt(lengths: Sequence[int], parts: int) -> list[list[int]]:
    """Indices in `parts` parts, ascending: each sequence, longest first, to the part with the fewest tokens so far."""
    found: list[list[int]] = [[] for _ in range(parts)]
    heap = [(0, part) for part in range(parts)]
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        tokens, part = heap[0]
        found[part].append(index)
        heapq.heapreplace(heap, (tokens + lengths[index], part))
    return [sorted(part) for part in found]
