# Copyright (c) 2025 NVIDIA CORPORATION.  All rights reserved.
"""Which DPxCP ranks take which sequences, micro-batch by micro-batch: pure functions of lengths.

A micro-batch takes as long as its slowest rank, by a model of what a sequence costs. Several ways
to pack are tried: all ranks for every sequence, micro-batches filled one after another, and for
several numbers of micro-batches blocks of the fewest ranks that all take about the same time. What
they give is improved where it is few sequences, and the one that takes the least time is chosen.
"""

import heapq
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache

COSTS = "MEGATRON_DYNAMIC_CP_COSTS"
# Above these nothing is gained, and seconds are lost: sequences of a batch for which all ways are
# tried, those that are improved, and ranks of which all tilings are tried.
ALL_WAYS, IMPROVED, TILED = 256, 128, 16
# How many of the ways are improved, and how often all micro-batches are gone through for that.
KEPT, PASSES = 8, 8
# How many micro-batches are tried for more sequences, in those that tokens need at least.
MORE = (1.0, 1.07, 1.15, 1.25, 1.5)
# How much longer than the longest sequence's a block of a greedy micro-batch may take.
LONGER = (1.0, 1.05, 1.1, 1.2, 1.4, 2.0)
# Blocks that are looked at for room before a new one is made.
LOOKED_AT = 4


@dataclass(frozen=True)
class CostModel:
    """How long a rank is busy, in the time that one token takes for all but attention.

    Args:
        quadratic_length: Tokens at which a sequence's attention costs as much as all else; 28,000
            is about Qwen3-235B's by operations of the forward pass.
        ring_share: What a token of a rank adds in each step of a ring. 0.3 follows from a published
            pair of training times of that model with context parallel sizes 8 and 4, 1,654 s and
            1,057 s, if nothing but the ring made the difference.
        ring_step: What a step costs whatever is in it: an assumption.
    """

    quadratic_length: float = 28_000.0
    ring_share: float = 0.3
    ring_step: float = 50.0

    def of(self, tokens: int, ranks: int) -> float:
        """Of a sequence, padding included, on each of the ranks that share it."""
        return tokens * (1 + (ranks - 1) * self.ring_share + tokens / self.quadratic_length) / ranks

    @classmethod
    def from_environment(cls) -> "CostModel":
        """With the figures of MEGATRON_DYNAMIC_CP_COSTS, NAME=NUMBER and commas, the same on all ranks.

        Raises:
            ValueError: For another name, and for a number that no cost has.
        """
        names = [each.name for each in fields(cls)]
        costs = {}
        for pair in filter(None, os.environ.get(COSTS, "").split(",")):
            name, _, text = (part.strip() for part in pair.partition("="))
            try:
                costs[name] = float(text)
            except ValueError:
                costs[name] = math.nan
            least_is_free = name != "quadratic_length" and costs[name] == 0
            if name not in names or not (0 < costs[name] < math.inf or least_is_free):
                raise ValueError(
                    f"{COSTS}: {pair.strip()!r} is not one of {', '.join(names)} with a number, above 0 for "
                    "quadratic_length, and from 0 for the others"
                )
        return cls(**costs)


class Block:
    """Ranks that share their sequences; `cost` and `tokens` are those of each rank."""

    __slots__ = ("cost", "ranks", "samples", "tokens")

    def __init__(self, ranks: int, cost: float):
        self.ranks, self.cost, self.tokens = ranks, cost, 0
        self.samples: list[int] = []


MicroBatch = list[Block]
# Sample given, sample taken or None, and the cost of source and target then.
Exchange = tuple[int, int | None, float, float]


def slowest(blocks: Sequence[Block]) -> float:
    """The cost of the slowest, 0 without any."""
    return max((block.cost for block in blocks), default=0.0)


def time_of(micro_batches: Sequence[MicroBatch]) -> float:
    """One after another, each as long as its slowest block."""
    return sum(slowest(blocks) for blocks in micro_batches)


def _by_time(micro_batches: Sequence[MicroBatch]) -> tuple[float, int]:
    return time_of(micro_batches), len(micro_batches)


class Packing:
    """Micro-batches of sequences of these lengths (tokens, 1 or more each).

    Args:
        lengths: Of all sequences; samples are indices of it.
        ranks: DPxCP ranks, a power of 2.
        max_tokens: Of a rank in one micro-batch, padding included. Only a sequence that all ranks
            share may exceed it, by its padding alone.
        tensor_parallel: A rank's part of a sequence is a multiple of it.
        cost: By which time is reckoned.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        ranks: int,
        max_tokens: int,
        tensor_parallel: int = 1,
        cost: CostModel | None = None,
    ):
        self.ranks, self.max_tokens, self.cost = ranks, max_tokens, cost or CostModel()
        self.sizes = [1 << power for power in range(ranks.bit_length())]
        self.costs: dict[int, list[float]] = {}
        self.tokens: dict[int, list[int]] = {}
        for size in self.sizes:
            # Equal parts that tensor parallelism divides; several ranks have two chunks each.
            align = tensor_parallel * (2 * size if size > 1 else 1)
            padded = [-(-length // align) * align for length in lengths]
            self.costs[size] = [self.cost.of(tokens, size) for tokens in padded]
            self.tokens[size] = [tokens // size for tokens in padded]
        self.order = sorted(range(len(lengths)), key=lambda sample: -lengths[sample])
        self.fewest = [self._fewest(sample) for sample in range(len(lengths))]

    def micro_batches(self) -> list[MicroBatch]:
        """Of all ways to pack that are tried the one that takes the least time, with the fewest.

        The blocks of a micro-batch have all ranks, and come with the largest first.
        """
        if not self.order:
            return []
        found = [way for way in self.ways() if all(map(self._fits, way))]
        found.sort(key=_by_time)
        if len(self.order) <= IMPROVED:
            found = [self.improved(way) for way in found[:KEPT]]
        best = min(found, key=_by_time)
        return [sorted(blocks, key=lambda block: -block.ranks) for blocks in best]

    def ways(self) -> Iterator[list[MicroBatch]]:
        """Ways to pack; some may have a block without room for what it has."""
        yield self.shared_by_all()
        if len(self.order) <= ALL_WAYS:
            yield from (self.greedy(longer) for longer in LONGER)
        tokens = sum(self.fewest[one] * self.tokens[self.fewest[one]][one] for one in self.order)
        least = -(-tokens // (self.ranks * self.max_tokens))
        numbers = {math.ceil(least * more) for more in MORE}
        if len(self.order) <= ALL_WAYS:
            numbers.update(range(least, max(numbers)))
        for number in sorted(numbers):
            yield self.balanced(number)

    def shared_by_all(self) -> list[MicroBatch]:
        """Plain context parallelism: each sequence on all ranks, in the first block with room."""
        blocks: list[Block] = []
        for sample in self.order:
            block = next((one for one in blocks if self._has_room(one, sample)), None)
            if block is None:
                blocks.append(block := self._block(self.ranks))
            self._add(block, sample)
        return [[block] for block in blocks]

    def greedy(self, longer: float) -> list[MicroBatch]:
        """One micro-batch after another, each opened by the longest sequence that is left.

        Others follow where the slowest block becomes slowest least, in a new block or in one that
        is there, and none takes more than `longer` times what the first took.
        """
        found, waiting = [], self.order
        while waiting:
            blocks = [self._block(self.fewest[waiting[0]], waiting[:1])]
            free, limit, left = self.ranks - blocks[0].ranks, longer * blocks[0].cost, []
            for sample in waiting[1:]:
                there = (block for block in blocks if self._has_room(block, sample))
                sizes = [size for size in self.sizes if self.fewest[sample] <= size <= free]
                new = (self._block(size) for size in sizes)
                block = self._soonest([*there, *new], sample, limit)
                if block is None:
                    left.append(sample)
                    continue
                if not block.samples:
                    blocks.append(block)
                    free -= block.ranks
                self._add(block, sample)
            found.append(self._spread(blocks, free))
            waiting = left
        return found

    def balanced(self, number: int) -> list[MicroBatch]:
        """About `number` micro-batches of blocks of the fewest ranks that all take about as long.

        Blocks of a size stand by their time, and each two neighbours are joined to a tile of twice
        the ranks, until the tiles have all.
        """
        of_size: dict[int, list[int]] = {size: [] for size in self.sizes}
        for sample in self.order:
            of_size[self.fewest[sample]].append(sample)
        left = self.ranks * number
        busy = {size: sum(self.costs[size][one] for one in of_size[size]) for size in of_size}
        time = sum(size * busy[size] for size in busy) / left
        blocks: dict[int, list[Block]] = {}
        # What larger blocks leave is for those of one rank, so that they are those of whole tiles.
        for size in reversed(self.sizes):
            wanted = left if size == 1 else round(busy[size] / time)
            blocks[size] = self._filled(size, wanted, of_size[size])
            left -= size * len(blocks[size])
        tiles = [[block] for block in blocks[1]]
        for size in self.sizes[1:]:
            tiles.sort(key=slowest, reverse=True)
            even = len(tiles) // 2 * 2
            pairs = zip(tiles[:even:2], tiles[1:even:2], strict=True)
            joined = [one + other for one, other in pairs]
            tiles = joined + [[self._wider(block) for block in tile] for tile in tiles[even:]]
            tiles += [[block] for block in blocks[size]]
        return tiles

    def improved(self, micro_batches: list[MicroBatch]) -> list[MicroBatch]:
        """Each micro-batch on its best tiling; then sequences of slowest blocks change places."""
        if self.ranks <= TILED:
            micro_batches = [self._retiled(blocks) for blocks in micro_batches]
        for _ in range(PASSES):
            changed = [self._change(blocks, micro_batches) for blocks in micro_batches]
            if not any(changed):
                break
        return micro_batches

    def _retiled(self, blocks: MicroBatch) -> MicroBatch:
        """The same sequences, longest first, each to the block that is done with it soonest."""
        samples = sorted((one for block in blocks for one in block.samples), key=self.order.index)
        for sizes in tilings(self.ranks, self.ranks):
            if len(sizes) > len(samples):
                continue
            made, limit = [self._block(size) for size in sizes], slowest(blocks)
            for sample in samples:
                there = [block for block in made if self._has_room(block, sample)]
                block = self._soonest(there, sample, limit)
                if block is None:
                    break
                self._add(block, sample)
            else:
                if all(block.samples for block in made) and slowest(made) < limit:
                    blocks = made
        return blocks

    def _change(self, blocks: MicroBatch, micro_batches: list[MicroBatch]) -> bool:
        """Moves a sequence of the slowest block, or exchanges it, where that gains most."""
        source = max(blocks, key=lambda block: block.cost)
        least, change = 1e-9 * source.cost, None
        for others in micro_batches:
            for target in others:
                if target is source:
                    continue
                rest = slowest([block for block in blocks if block not in (source, target)])
                rest_there = slowest([block for block in others if block not in (source, target)])
                now = slowest(blocks) + (slowest(others) if others is not blocks else 0.0)
                for give, take, cost, cost_there in self._exchanges(source, target):
                    here, there = max(rest, cost), max(rest_there, cost_there)
                    gain = now - (max(here, there) if others is blocks else here + there)
                    if gain > least:
                        least, change = gain, (target, give, take)
        if change is None:
            return False
        target, give, take = change
        self._remove(source, give)
        self._add(target, give)
        if take is not None:
            self._remove(target, take)
            self._add(source, take)
        return True

    def _exchanges(self, source: Block, target: Block) -> Iterator[Exchange]:
        """Those that fit."""
        costs, tokens = self.costs[source.ranks], self.tokens[source.ranks]
        costs_there, tokens_there = self.costs[target.ranks], self.tokens[target.ranks]
        for give in source.samples:
            cost, cost_there = source.cost - costs[give], target.cost + costs_there[give]
            room = self.max_tokens - source.tokens + tokens[give]
            room_there = self.max_tokens - target.tokens - tokens_there[give]
            if len(source.samples) > 1 and room_there >= 0:
                yield give, None, cost, cost_there
            for take in target.samples:
                fits = tokens[take] <= room and room_there + tokens_there[take] >= 0
                if fits and costs[take] < costs[give]:
                    yield give, take, cost + costs[take], cost_there - costs_there[take]

    def _filled(self, size: int, number: int, samples: Sequence[int]) -> list[Block]:
        """`number` blocks of `size`, for room more: each sample to the one that is done soonest."""
        number = max(number, -(-sum(self.tokens[size][one] for one in samples) // self.max_tokens))
        made = min(max(number, 1), len(samples))
        heap = [(0.0, index, self._block(size)) for index in range(made)]
        for sample in samples:
            full = []
            while heap and len(full) < LOOKED_AT and not self._has_room(heap[0][2], sample):
                full.append(heapq.heappop(heap))
            if heap and self._has_room(heap[0][2], sample):
                _, index, block = heapq.heappop(heap)
            else:
                index, block, made = made, self._block(size), made + 1
            self._add(block, sample)
            for one in [*full, (block.cost, index, block)]:
                heapq.heappush(heap, one)
        return [block for _, _, block in heap]

    def _spread(self, blocks: MicroBatch, free: int) -> MicroBatch:
        """Free ranks go to the smallest blocks, of these to the slowest first."""
        while free:
            size = min(block.ranks for block in blocks)
            block = max((one for one in blocks if one.ranks == size), key=lambda one: one.cost)
            blocks = [one for one in blocks if one is not block]
            blocks.append(self._wider(block))
            free -= size
        return blocks

    def _wider(self, block: Block) -> Block:
        return self._block(2 * block.ranks, block.samples)

    def _soonest(self, blocks: Sequence[Block], sample: int, limit: float) -> Block | None:
        """The one done soonest with the sample too, by `limit`; of equal ones the smallest."""
        done = [(block.cost + self.costs[block.ranks][sample], block) for block in blocks]
        in_time = [pair for pair in done if pair[0] <= limit]
        return min(in_time, key=lambda pair: (pair[0], pair[1].ranks))[1] if in_time else None

    def _fewest(self, sample: int) -> int:
        """Ranks with room for it."""
        return next(
            (size for size in self.sizes if self.tokens[size][sample] <= self.max_tokens),
            self.ranks,
        )

    def _block(self, ranks: int, samples: Sequence[int] = ()) -> Block:
        block = Block(ranks, (ranks - 1) * self.cost.ring_step)
        for sample in samples:
            self._add(block, sample)
        return block

    def _add(self, block: Block, sample: int) -> None:
        block.samples.append(sample)
        block.cost += self.costs[block.ranks][sample]
        block.tokens += self.tokens[block.ranks][sample]

    def _remove(self, block: Block, sample: int) -> None:
        block.samples.remove(sample)
        block.cost -= self.costs[block.ranks][sample]
        block.tokens -= self.tokens[block.ranks][sample]

    def _has_room(self, block: Block, sample: int) -> bool:
        alone_on_all = block.ranks == self.ranks and not block.samples
        return alone_on_all or block.tokens + self.tokens[block.ranks][sample] <= self.max_tokens

    def _block_fits(self, block: Block) -> bool:
        alone_on_all = block.ranks == self.ranks and len(block.samples) == 1
        return block.tokens <= self.max_tokens or alone_on_all

    def _fits(self, blocks: MicroBatch) -> bool:
        return all(map(self._block_fits, blocks))


@cache
def tilings(ranks: int, largest: int) -> tuple[tuple[int, ...], ...]:
    """All ways to fill `ranks` with powers of 2, largest first."""
    if not ranks:
        return ((),)
    sizes = (1 << power for power in reversed(range(min(ranks, largest).bit_length())))
    return tuple((size, *rest) for size in sizes for rest in tilings(ranks - size, size))
