#!/usr/bin/env python3
"""How evenly hybrid data parallelism's packing loads ranks, what a call costs, and when it pays by its cost model.

Measured is the time of a call. Everything else is computed: the layouts are those of the patch's own packing, and their
times those of its cost model, which nobody has fitted to an NPU beyond what docs/hdp.md says. Compared on the same
sequences: first-fit (each sequence to the first rank with room) and Karmarkar-Karp (upstream's partition, one part a
rank); both put a sequence on one rank, whole.

Plain Python, seeded, some seconds: `python benchmarks/bench_hdp.py [--out docs/benchmarks.md]`.
"""

from __future__ import annotations

import argparse
import math
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench_data_rebalance import Workload
from bench_data_rebalance import lengths as answers_of
from markers import write_between_markers

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "scripts"))
from hdp_pays import PACKING, Answer, karmarkar_karp, load_packing, simulate  # noqa: E402  (see the line above)

RANKS = (4, 8, 64)
COUNTS = (8, 64, 1024)
# Room over what plain context parallelism needs for the same sequences: a micro-batch that is nearly full.
ROOM = 1.1


def log_normal(median: float, sigma: float, longest: int) -> Callable[[int, int], list[int]]:
    """Lengths whose logarithm is normal, cut at `longest` tokens; a function of how many, and a seed."""

    def draw(count: int, seed: int) -> list[int]:
        rng = random.Random(seed)
        return [max(1, min(longest, round(median * math.exp(sigma * rng.gauss(0, 1))))) for _ in range(count)]

    return draw


def published(mean: float, prompt: int, longest: int) -> Callable[[int, int], list[int]]:
    """Lengths with a published mean and limit: 16 answers to a prompt, log-normal with sigma 0.8 (an assumption)."""

    def draw(count: int, seed: int) -> list[int]:
        work = Workload(prompts=max(1, count // 16), mean=mean, longest=longest, prompt_tokens=prompt)
        flat = [length + prompt for row in answers_of(work, seed) for length in row]
        return (flat * -(-count // len(flat)))[:count]

    return draw


DISTRIBUTIONS: dict[str, Callable[[int, int], list[int]]] = {
    "log-normal, median 1,000, sigma 1, at most 16,384": log_normal(1000, 1.0, 16384),
    "log-normal, median 4,000, sigma 0.5, at most 16,384": log_normal(4000, 0.5, 16384),
    "GRPO run: prompts 74, answers 7,345 in the mean, at most 32,768": published(7345, 74, 32768),
    "DAPO run: prompts 133, answers 10,119 in the mean, at most 34,816": published(10119, 133, 34816),
}


def first_fit(lengths: Sequence[int], ranks: int, room: int) -> list[list[int]] | None:
    """Each sequence, in order, to the first rank with room; None where one finds none."""
    parts: list[list[int]] = [[] for _ in range(ranks)]
    tokens = [0] * ranks
    for index, length in enumerate(lengths):
        place = next((rank for rank in range(ranks) if tokens[rank] + length <= room), None)
        if place is None:
            return None
        parts[place].append(index)
        tokens[place] += length
    return parts


def balanced(packing: Any, lengths: Sequence[int], ranks: int, room: int) -> list[list[int]] | None:
    """Karmarkar-Karp by cost; None where a part exceeds the room."""
    parts = karmarkar_karp(packing.CostModel().sequences(lengths, 1), ranks)
    fits = all(sum(lengths[index] for index in part) <= room for part in parts)
    return parts if fits else None


def whole_on_ranks(packing: Any, parts: list[list[int]] | None) -> list[Any] | None:
    """A layout with one rank a group; a rank without a sequence is one that waits."""
    return parts and [packing.Group(rank, 1, tuple(part)) for rank, part in enumerate(parts)]


def imbalance(packing: Any, groups: list[Any] | None, lengths: Sequence[int], ranks: int) -> float | None:
    """The slowest group's time over the mean of the ranks; 1 is perfect."""
    if groups is None:
        return None
    costs = packing.group_costs(groups, lengths)
    mean = sum(cost * group.ranks for cost, group in zip(costs, groups, strict=True)) / ranks
    return float(max(costs) / mean)


def median_or_not(values: Sequence[float | None]) -> str:
    """The median of those that fitted, and how many did not."""
    found = [value for value in values if value is not None]
    missing = len(values) - len(found)
    if not found:
        return "fits never"
    return f"{statistics.median(found):.2f}" + (f" ({missing} of {len(values)} do not fit)" if missing else "")


def balance_table(packing: Any, seeds: int) -> list[list[object]]:
    """Medians over seeds. `time` is that of the layout's slowest group, in plain context parallelism's."""
    rows: list[list[object]] = [["lengths", "sequences", "ranks", "first-fit", "Karmarkar-Karp", "packing", "time"]]
    for name, draw in DISTRIBUTIONS.items():
        for count in COUNTS:
            for ranks in RANKS:
                rows.append([name, f"{count:,}", ranks, *balance(packing, draw, count, ranks, seeds)])
    return rows


def balance(packing: Any, draw: Callable[[int, int], list[int]], count: int, ranks: int, seeds: int) -> list[str]:
    kinds: list[list[float | None]] = [[], [], []]
    times = []
    for seed in range(seeds):
        lengths = draw(count, seed)
        room = round(packing.tokens_of_rank(lengths, ranks, 1) * ROOM)
        groups = packing.layout(lengths, ranks, room)
        fitted = whole_on_ranks(packing, first_fit(lengths, ranks, room))
        differenced = whole_on_ranks(packing, balanced(packing, lengths, ranks, room))
        for kind, found in zip(kinds, (fitted, differenced, groups), strict=True):
            kind.append(imbalance(packing, found, lengths, ranks))
        plain = packing.slowest(packing.plain(lengths, ranks), lengths)
        times.append(packing.slowest(groups, lengths) / plain)
    return [*map(median_or_not, kinds), f"{statistics.median(times):.2f}"]


def call_table(packing: Any, repeats: int = 5) -> list[list[object]]:
    """Processor time of a call, the best of some: it is what the call itself takes on a busy machine too."""
    rows: list[list[object]] = [["sequences", *(f"{ranks} ranks" for ranks in (*RANKS, 60))]]
    draw = log_normal(1000, 1.0, 16384)
    for count in COUNTS:
        row: list[object] = [f"{count:,}"]
        for ranks in (*RANKS, 60):
            lengths = draw(count, 1)
            room = round(packing.tokens_of_rank(lengths, ranks, 1) * ROOM)
            row.append(f"{min(call_ms(packing, lengths, ranks, room) for _ in range(repeats)):.2f} ms")
        rows.append(row)
    return rows


def call_ms(packing: Any, lengths: Sequence[int], ranks: int, room: int) -> float:
    start = time.process_time()
    packing.layout(lengths, ranks, room)
    return (time.process_time() - start) * 1000


# The two published results (docs/hdp.md): 25 % with eight ranks where most sequences are short, 5 % with four where most
# have more than 3,000 tokens. Neither lengths nor maximum of tokens were published; these are examples of both kinds.
CASES: dict[str, tuple[int, int, Callable[[int, int], list[int]]]] = {
    "many short: median 700 of at most 16,000, 8 ranks": (8, 2048, log_normal(700, 1.0, 16000)),
    "mostly long: median 5,000 of at most 8,192, 4 ranks": (4, 2560, log_normal(5000, 0.4, 8192)),
    "the same, twice the tokens a rank": (4, 5120, log_normal(5000, 0.4, 8192)),
    "GRPO run's means, 4 ranks": (4, 9216, published(7345, 74, 32768)),
    "GRPO run's means, 8 ranks": (8, 9216, published(7345, 74, 32768)),
    "DAPO run's means, 4 ranks": (4, 9216, published(10119, 133, 34816)),
}


def pays_table(packing: Any, seeds: int) -> list[list[object]]:
    shares = (0.05, 0.15, 0.3)
    heads = [f"saved, ring's share {share:g}" for share in shares]
    rows: list[list[object]] = [["case", "tokens a rank", *heads, "slowest over the mean"]]
    for name, (ranks, tokens, draw) in CASES.items():
        found = [[answer(packing, ranks, tokens, draw(256, seed), share) for seed in range(seeds)] for share in shares]
        gains = [f"{statistics.median(one.gain for one in column):.0%}" for column in found]
        rows.append([name, f"{tokens:,}", *gains, f"{statistics.median(one.imbalance for one in found[-1]):.2f}"])
    return rows


def answer(packing: Any, ranks: int, tokens: int, lengths: list[int], ring_share: float) -> Answer:
    cost = packing.CostModel(ring_share=ring_share)
    return simulate(lengths, packing, packing.Packing(ranks, tokens), 64, cost)


def markdown(rows: Sequence[Sequence[object]]) -> list[str]:
    lines = [f"| {' | '.join(map(str, row))} |" for row in rows]
    return [lines[0], "|---" * len(rows[0]) + "|", *lines[1:]]


TABLES: dict[str, Callable[[Any, int], list[list[object]]]] = {
    "The slowest group over the mean of the ranks, one micro-batch that is nearly full (a tenth of room), and its time in "
    "plain context parallelism's:": balance_table,
    "Processor time of a call, log-normal lengths:": lambda packing, seeds: call_table(packing),
    "Forward and backward passes saved, by the cost model, batches of 64 sequences, for three costs of a ring's step "
    "(docs/hdp.md):": pays_table,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=9, help="batches a row; the tables hold medians")
    parser.add_argument("--packing", type=Path, default=REPO / PACKING, help="the packing module, if not the patch's")
    parser.add_argument("--out", type=Path, help="a markdown file whose part between the markers is replaced")
    args = parser.parse_args()
    packing = load_packing(args.packing)
    program = f"Python {platform.python_version()}"
    blocks = [f"Computed, medians of {args.seeds} batches, {program}. Command: `python benchmarks/bench_hdp.py`."]
    for title, table in TABLES.items():
        blocks.append("\n".join([title, "", *markdown(table(packing, args.seeds))]))
        print(blocks[-1], file=sys.stderr)
    text = "\n\n".join(blocks) + "\n"
    print(text)
    if args.out:
        write_between_markers(args.out, "bench-hdp", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
