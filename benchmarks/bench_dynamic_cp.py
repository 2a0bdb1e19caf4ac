#!/usr/bin/env python3
"""What the packing of dynamic_cp_groups makes of batches, beside plain context parallelism, the older release's hdp by time
(hybrid_data_parallel_by_time) and, with --mcore-dev, the scheduler of Megatron-LM's branch dev.

All times are of one cost model (docs/hdp.md), for two costs of a ring's step; only the time of a call is measured. The
cases, lengths and tokens a rank are bench_hdp.py's. In the rows "as shipped" the packing reckons with a ring's share of 0.3,
which is what the patch has, whatever the share is; in the others it knows the share, as all others do.

Plain Python, seeded: `python benchmarks/bench_dynamic_cp.py [--out docs/benchmarks.md] [--mcore-dev TREE]`.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from bench_hdp import CASES, REPO, Scheduler, markdown, mcore_scheduler
from hdp_pays import PACKING, karmarkar_karp, load_packing  # in scripts/, of which bench_hdp tells Python
from markers import write_between_markers

SCHEDULER = "patches/megatron-lm/*/dynamic_cp_groups/files/megatron/core/datasets/dynamic_cp_packing.py"
SHARES = (0.05, 0.3)
SMALL, LARGE = (8, 16, 32, 64), (256, 1024)
# Slower than a peer by more than this is counted: times are sums of floats.
SAME = 1e-6


@dataclass(frozen=True)
class Batch:
    lengths: list[int]
    ranks: int
    tokens: int
    share: float


def batches(counts: Sequence[int], seeds: int) -> Iterator[Batch]:
    for ranks, tokens, draw in CASES.values():
        for share in SHARES:
            for count in counts:
                for seed in range(seeds):
                    yield Batch(draw(count, seed), ranks, tokens, share)


class Peers:
    """Each gives the time of a batch's micro-batches, one after another, by the older release's cost model."""

    def __init__(self, ours: ModuleType, hdp: ModuleType, dev: Scheduler | None):
        self.ours, self.hdp, self.dev = ours, hdp, dev

    def cost(self, batch: Batch) -> Any:
        return self.hdp.CostModel(ring_share=batch.share)

    def packing(self, batch: Batch, share: float) -> Any:
        return self.ours.Packing(batch.lengths, batch.ranks, batch.tokens, 1, self.ours.CostModel(ring_share=share))

    def packed(self, batch: Batch, share: float) -> list[list[tuple[int, tuple[int, ...]]]]:
        """(ranks, sequences) of each block of each micro-batch, by the patch's packing."""
        found = self.packing(batch, share).micro_batches()
        return [[(block.ranks, tuple(block.samples)) for block in blocks] for blocks in found]

    def time(self, batch: Batch, micro_batches: list[list[tuple[int, tuple[int, ...]]]]) -> float:
        found = 0.0
        for blocks in micro_batches:
            groups = [self.hdp.Group(0, ranks, samples) for ranks, samples in blocks]
            found += self.hdp.slowest(groups, batch.lengths, 1, self.cost(batch))
        return found

    def plain(self, batch: Batch) -> float:
        """Upstream's micro-batches, with all ranks for every sequence."""
        parts = karmarkar_karp(batch.lengths, self.count(batch))
        return self.time(batch, [[(batch.ranks, tuple(part))] for part in parts])

    def count(self, batch: Batch) -> int:
        return min(len(batch.lengths), -(-sum(batch.lengths) // (batch.ranks * batch.tokens)))

    def by_time(self, batch: Batch) -> float:
        packing = self.hdp.Packing(batch.ranks, batch.tokens, 1, self.cost(batch))
        found = packing.fastest(batch.lengths, self.count(batch), karmarkar_karp)
        return float(packing.time(batch.lengths, found))

    def of_dev(self, batch: Batch) -> float:
        """By Megatron-LM's branch dev, which does not count padding against the tokens of a rank."""
        assert self.dev
        of_ranks = self.dev(batch.lengths, batch.ranks, batch.tokens)
        return self.time(batch, [[(ranks.count(one), one) for one in dict.fromkeys(ranks)] for ranks in of_ranks])

    def bound(self, batch: Batch) -> float:
        """No packing takes less: each sequence on the ranks that cost least in all, and no rank ever waits."""
        packing = self.packing(batch, batch.share)
        least = (
            min(size * packing.costs[size][one] for size in packing.sizes if size >= packing.fewest[one])
            for one in packing.order
        )
        return float(sum(least) / batch.ranks)


def table(peers: Peers, seeds: int) -> list[list[object]]:
    """Ratios of times to that of each peer: median and worst, and in how many batches it is slower."""
    others: dict[str, Callable[[Batch], float]] = {"plain": peers.plain, "hdp by time": peers.by_time}
    if peers.dev:
        others["branch dev"] = peers.of_dev
    heads: list[object] = [
        "sequences",
        "ring's share",
        "batches",
        "over the bound",
        *(f"in {name}'s" for name in others),
        "a call",
    ]
    rows = [heads]
    for kind, counts, drawn in (("8 to 64", SMALL, seeds), ("256, 1,024", LARGE, max(1, seeds // 6))):
        found = list(batches(counts, drawn))
        for share in SHARES:
            some = [batch for batch in found if batch.share == share]
            theirs = [[other(batch) for batch in some] for other in (peers.bound, *others.values())]
            for reckoned in dict.fromkeys((share, SHARES[-1])):
                said = f"{share}{', as shipped' if reckoned != share else ''}"
                rows.append([kind, said, len(some), *row(peers, some, theirs, reckoned)])
    return rows


def row(peers: Peers, some: list[Batch], theirs: list[list[float]], reckoned: float) -> list[str]:
    """Beside the bound and the peers, whose times are `theirs`; the packing reckons with that share."""
    times, spent = [], []
    for batch in some:
        start = time.process_time()
        packed = peers.packed(batch, reckoned)
        spent.append((time.process_time() - start) * 1000)
        times.append(peers.time(batch, packed))
    over, *ratios = [[mine / one for mine, one in zip(times, column, strict=True)] for column in theirs]
    cells = [f"{statistics.median(over):.3f}"]
    for column in ratios:
        slower = sum(ratio > 1 + SAME for ratio in column)
        cells.append(f"{statistics.median(column):.3f}, worst {max(column):.3f}, slower {slower} times")
    return [*cells, f"{statistics.median(spent):.0f} ms"]


def calls(peers: Peers) -> list[list[object]]:
    """Processor time of a call for thousands of sequences, the longest of all cases."""
    rows: list[list[object]] = [["sequences", "ranks", "tokens a rank", "slowest case", "a call"]]
    for count, ranks in ((1024, 8), (8192, 64)):
        worst = (0.0, "", 0)
        for name, (_, tokens, draw) in CASES.items():
            lengths = draw(count, 0)
            batch = Batch(lengths, ranks, max(tokens, -(-max(lengths) // ranks // 128 + 1) * 128), SHARES[-1])
            start = time.process_time()
            peers.packed(batch, batch.share)
            worst = max(worst, (time.process_time() - start, name, batch.tokens))
        rows.append([f"{count:,}", ranks, f"{worst[2]:,}", worst[1], f"{worst[0] * 1000:.0f} ms"])
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, help="batches of each case, count and share")
    parser.add_argument("--packing", type=Path, help="the module, if not the patch's of the newest stack")
    parser.add_argument("--out", type=Path, help="a markdown file whose part between the markers is replaced")
    parser.add_argument("--mcore-dev", type=Path, metavar="TREE", help="a checkout of Megatron-LM's branch dev")
    args = parser.parse_args()
    path = args.packing or max(REPO.glob(SCHEDULER))
    peers = Peers(
        load_packing(path), load_packing(REPO / PACKING), mcore_scheduler(args.mcore_dev) if args.mcore_dev else None
    )
    command = f"python benchmarks/bench_dynamic_cp.py{' --mcore-dev TREE' if args.mcore_dev else ''}"
    blocks = [
        f"Computed, {args.seeds} batches of each case, count and share; a call is measured (Python {platform.python_version()}). "
        f"Command: `{command}`.",
        "Time in that of a peer, medians and worst:",
        "\n".join(markdown(table(peers, args.seeds))),
        "Processor time of a call:",
        "\n".join(markdown(calls(peers))),
    ]
    text = "\n\n".join(blocks) + "\n"
    print(text)
    if args.out:
        write_between_markers(args.out, "bench-dynamic-cp", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
