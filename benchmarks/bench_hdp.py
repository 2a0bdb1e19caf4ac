#!/usr/bin/env python3
"""How evenly hybrid data parallelism's packing loads ranks, what a call costs, and when it pays by its cost model.

Measured is the time of a call. Everything else is computed: the layouts are those of the patch's own packing, and their
times those of its cost model, which nobody has fitted to an NPU beyond what docs/hdp.md says. Compared on the same
sequences: first-fit (each sequence to the first rank with room) and Karmarkar-Karp (upstream's partition, one part a
rank); both put a sequence on one rank, whole. Lengths are log-normal, or drawn from quantiles of measured ones, one by
one: that the answers to a prompt are alike, and requests that come together too, is not in them.

Plain Python, seeded, some minutes: `python benchmarks/bench_hdp.py [--out docs/benchmarks.md] [--mcore-dev TREE]`. TREE is
a checkout of Megatron-LM's branch dev, whose scheduler of dynamic context parallelism the last table then has beside ours.
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
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


def trace(name: str) -> dict[str, Any]:
    """What lengths/make.py kept of a published trace."""
    found: dict[str, Any] = json.loads((Path(__file__).parent / "lengths" / f"{name}.json").read_text(encoding="utf-8"))
    return found


def measured(name: str) -> Callable[[int, int], list[int]]:
    """Lengths of a published trace: each is the middle one of a part of its requests, all parts alike likely."""
    quantiles = trace(name)["quantiles"]

    def draw(count: int, seed: int) -> list[int]:
        return random.Random(seed).choices(quantiles, k=count)

    return draw


MEASURED = {
    "measured: conversation": "azure_conversation",
    "measured: DeepSeek-R1's answers": "deepseek_r1_answers",
    "measured: long contexts": "mooncake_conversation",
}
DISTRIBUTIONS: dict[str, Callable[[int, int], list[int]]] = {
    "log-normal, median 1,000, sigma 1, at most 16,384": log_normal(1000, 1.0, 16384),
    "log-normal, median 4,000, sigma 0.5, at most 16,384": log_normal(4000, 0.5, 16384),
    **{label: measured(name) for label, name in MEASURED.items()},
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


def measured_table() -> list[list[object]]:
    """What the measured lengths are, in tokens, and where they come from."""
    rows: list[list[object]] = [["lengths", "of", "requests", "mean", "median", "99 %", "longest", "source"]]
    for label, name in MEASURED.items():
        found = trace(name)
        spread = [found["mean"], *(found["quantiles"][int(at * len(found["quantiles"]))] for at in (0.5, 0.99))]
        source = (
            f"{found['repository'].removeprefix('https://github.com/')} at {found['commit'][:12]}, {found['licence']}"
        )
        numbers = [f"{number:,.0f}" for number in (found["requests"], *spread, found["longest"])]
        rows.append([label, found["what"], *numbers, source])
    return rows


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
        room = room_for(packing, lengths, ranks, ROOM)
        groups = packing.layout(lengths, ranks, room)
        fitted = whole_on_ranks(packing, first_fit(lengths, ranks, room))
        differenced = whole_on_ranks(packing, balanced(packing, lengths, ranks, room))
        for kind, found in zip(kinds, (fitted, differenced, groups), strict=True):
            kind.append(imbalance(packing, found, lengths, ranks))
        plain = packing.slowest(packing.plain(lengths, ranks), lengths)
        times.append(packing.slowest(groups, lengths) / plain)
    return [*map(median_or_not, kinds), f"{statistics.median(times):.2f}"]


def room_for(packing: Any, lengths: Sequence[int], ranks: int, room: float) -> int:
    """Tokens a rank at most: `room` times what each needs with plain context parallelism."""
    plain: int = packing.tokens_of_rank(lengths, ranks, 1)
    return round(plain * room)


def whole_table(packing: Any, seeds: int) -> list[list[object]]:
    """The packing's time in Karmarkar-Karp's, of batches that fit there; the hardest case, few sequences and no room."""
    rows: list[list[object]] = [["room", "batches", "fit", "median", "slowest", "slower by more than 2 %"]]
    for room in (1.02, 1.1, 1.3):
        sizes = [(4 * ranks, ranks) for ranks in (2, 4, 8, 16)]
        drawn = [
            (draw(count, seed), ranks)
            for draw in DISTRIBUTIONS.values()
            for count, ranks in sizes
            for seed in range(seeds)
        ]
        found = [over_whole(packing, lengths, ranks, room) for lengths, ranks in drawn]
        ratios = [ratio for ratio in found if ratio is not None]
        slower = sum(ratio > 1.02 for ratio in ratios)
        rows.append(
            [
                f"{room - 1:.0%}",
                len(drawn),
                len(ratios),
                f"{statistics.median(ratios):.2f}",
                f"{max(ratios):.2f}",
                slower,
            ]
        )
    return rows


def over_whole(packing: Any, lengths: Sequence[int], ranks: int, room: float) -> float | None:
    """The time of the packing's layout in that of Karmarkar-Karp's; None where the latter does not fit."""
    tokens = room_for(packing, lengths, ranks, room)
    whole = whole_on_ranks(packing, balanced(packing, lengths, ranks, tokens))
    if not whole:
        return None
    return float(packing.slowest(packing.layout(lengths, ranks, tokens), lengths) / packing.slowest(whole, lengths))


def call_table(packing: Any, repeats: int = 5) -> list[list[object]]:
    """Processor time of a call, the best of some: it is what the call itself takes on a busy machine too."""
    rows: list[list[object]] = [["sequences", *(f"{ranks} ranks" for ranks in (*RANKS, 60))]]
    draw = log_normal(1000, 1.0, 16384)
    for count in COUNTS:
        row: list[object] = [f"{count:,}"]
        for ranks in (*RANKS, 60):
            lengths = draw(count, 1)
            room = room_for(packing, lengths, ranks, ROOM)
            row.append(f"{min(call_ms(packing, lengths, ranks, room) for _ in range(repeats)):.2f} ms")
        rows.append(row)
    return rows


def call_ms(packing: Any, lengths: Sequence[int], ranks: int, room: int) -> float:
    start = time.process_time()
    packing.layout(lengths, ranks, room)
    return (time.process_time() - start) * 1000


def measured_cases() -> dict[str, tuple[int, int, Callable[[int, int], list[int]]]]:
    """Tokens a rank: the least power of two with which the trace's longest sequence fits on all ranks."""
    found = {}
    for label, name in MEASURED.items():
        for ranks in (8, 4):
            needed = -(-trace(name)["longest"] // ranks)
            found[f"{label}, {ranks} ranks"] = (ranks, 1 << (needed - 1).bit_length(), measured(name))
    return found


# The two published results (docs/hdp.md): 25 % with eight ranks where most sequences are short, 5 % with four where most
# have more than 3,000 tokens. Neither lengths nor maximum of tokens were published; these are examples of both kinds.
CASES: dict[str, tuple[int, int, Callable[[int, int], list[int]]]] = {
    "many short: median 700 of at most 16,000, 8 ranks": (8, 2048, log_normal(700, 1.0, 16000)),
    "mostly long: median 5,000 of at most 8,192, 4 ranks": (4, 2560, log_normal(5000, 0.4, 8192)),
    "the same, twice the tokens a rank": (4, 5120, log_normal(5000, 0.4, 8192)),
    **measured_cases(),
    "GRPO run's means, 4 ranks": (4, 9216, published(7345, 74, 32768)),
    "GRPO run's means, 8 ranks": (8, 9216, published(7345, 74, 32768)),
    "the same, half the tokens a rank": (8, 4608, published(7345, 74, 32768)),
    "the recipe grpo-hdp's tokens a rank": (4, 8704, published(7345, 74, 32768)),
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
    setting = packing.Packing(ranks, tokens, 1, packing.CostModel(ring_share=ring_share))
    return simulate(lengths, packing, setting, 64)


Scheduler = Callable[[Sequence[int], int, int], list[list[tuple[int, ...]]]]
SCHEDULER = "megatron/core/datasets/data_schedule_utils.py"
SCHEDULER_NAMES = {"next_hdp_group_packing_aware", "dcp_gpus_needed", "_DYNAMIC_CP_WORKLOAD_CAP_DELTA"}


def mcore_scheduler(tree: Path) -> Scheduler:
    """Megatron-Core dev's `default_dynamic_cp`, read from a checkout; of its module, which needs Transformer Engine, the
    functions alone. It gives micro-batches, and of each what every rank has: indices of sequences."""
    found = ast.parse((tree / SCHEDULER).read_text(encoding="utf-8"))
    found.body = [node for node in found.body if _names(node) & SCHEDULER_NAMES]
    space: dict[str, Any] = {}
    exec("from functools import lru_cache\nfrom math import ceil, log2\nfrom typing import *", space)
    exec(compile(found, SCHEDULER, "exec"), space)

    def schedule(lengths: Sequence[int], ranks: int, tokens: int) -> list[list[tuple[int, ...]]]:
        left, micro_batches = sorted(enumerate(lengths), key=lambda pair: pair[1], reverse=True), []
        while left:
            _, left, _, of_ranks = space["next_hdp_group_packing_aware"](left, ranks, max_seq_len_per_rank=tokens)
            micro_batches.append([tuple(sorted(one)) for one in of_ranks])
        return micro_batches

    return schedule


def _names(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.Assign):
        return {target.id for target in node.targets if isinstance(target, ast.Name)}
    return {node.name} if isinstance(node, ast.FunctionDef) else set()


def mcore_time(packing: Any, scheduler: Scheduler, setting: Any, lengths: Sequence[int]) -> float:
    """The time of its micro-batches, each with its groups or laid out by the packing, whichever is faster."""
    total = 0.0
    for of_ranks in scheduler(lengths, setting.ranks, setting.max_tokens):
        sizes = {one: of_ranks.count(one) for one in of_ranks}
        groups = [packing.Group(0, size, one) for one, size in sizes.items()]
        chosen = [lengths[index] for one in sizes for index in one]
        ours = packing.find_layout(chosen, setting.ranks, setting.max_tokens, 1, setting.cost)
        times = [packing.slowest(groups, lengths, 1, setting.cost)]
        total += min([*times, packing.slowest(ours, chosen, 1, setting.cost)] if ours else times)
    return total


def bound(packing: Any, setting: Any, lengths: Sequence[int]) -> float:
    """No division takes less: each sequence on the ranks where it costs least in all, and no rank ever waits."""
    sizes = [size for size in range(1, setting.ranks + 1) if setting.ranks % size == 0]
    least = [
        min(
            size * setting.cost.sequences([packing.padded_length(length, size, 1)], size)[0]
            for size in sizes
            if packing.tokens_of_rank([length], size, 1) <= setting.max_tokens
        )
        for length in lengths
    ]
    return float(sum(least) / setting.ranks)


def division(packing: Any, scheduler: Scheduler | None, setting: Any, lengths: list[int], model: Any) -> list[float]:
    """Times in plain context parallelism's: upstream's division, by time, by time with the patch's costs, Megatron-Core
    dev's, the bound; then micro-batches of plain and by time, and ms of the processor for the division by time."""
    count = min(len(lengths), -(-sum(lengths) // (setting.ranks * setting.max_tokens)))
    parts = [[lengths[index] for index in part] for part in karmarkar_karp(lengths, count)]
    plain = sum(packing.slowest(packing.plain(part, setting.ranks), part, 1, setting.cost) for part in parts)
    start = time.process_time()
    by_time = setting.fastest(lengths, count, karmarkar_karp)
    spent = (time.process_time() - start) * 1000
    patch = packing.Packing(setting.ranks, setting.max_tokens, 1, model)
    as_patched = [[lengths[index] for index in part] for part in patch.fastest(lengths, count, karmarkar_karp)]
    times = [
        setting.time(lengths, setting.partition(lengths, count, karmarkar_karp)),
        setting.time(lengths, by_time),
        sum(packing.slowest(patch.layout(part), part, 1, setting.cost) for part in as_patched),
        mcore_time(packing, scheduler, setting, lengths) if scheduler else math.nan,
        bound(packing, setting, lengths),
    ]
    return [*(one / plain for one in times), count, len(by_time), spent]


def division_table(packing: Any, scheduler: Scheduler | None, seeds: int) -> list[list[object]]:
    """Medians over batches; a batch is what one data parallel rank has for one update."""
    heads = ["upstream's micro-batches", "by time", "by time, laid out for 0.3", "Megatron-Core dev", "bound"]
    rows: list[list[object]] = [["case", "share", "sequences", *heads, "by time / dev", "micro-batches", "a call"]]
    for name, (ranks, tokens, draw) in CASES.items():
        for share in (0.05, 0.3):
            setting = packing.Packing(ranks, tokens, 1, packing.CostModel(ring_share=share))
            for count in (64, 256, 1024):
                found = [
                    division(packing, scheduler, setting, draw(count, seed), packing.CostModel())
                    for seed in range(seeds)
                ]
                *times, least, made, spent = (statistics.median(column) for column in zip(*found, strict=True))
                numbers = [f"{one:.3f}" if one == one else "-" for one in (*times, times[1] / times[3])]
                rows.append([name, share, f"{count:,}", *numbers, f"{made:.0f} for {least:.0f}", f"{spent:.0f} ms"])
    return rows


def markdown(rows: Sequence[Sequence[object]]) -> list[str]:
    lines = [f"| {' | '.join(map(str, row))} |" for row in rows]
    return [lines[0], "|---" * len(rows[0]) + "|", *lines[1:]]


TABLES: dict[str, Callable[[Any, int], list[list[object]]]] = {
    "The measured lengths, in tokens (benchmarks/lengths):": lambda packing, seeds: measured_table(),
    "The slowest group over the mean of the ranks, one micro-batch that is nearly full (a tenth of room), and its time in "
    "plain context parallelism's:": balance_table,
    "The packing's time in Karmarkar-Karp's where that fits, all of these lengths, four sequences a rank on 2, 4, 8 and 16 "
    "ranks:": whole_table,
    "Processor time of a call, log-normal lengths:": lambda packing, seeds: call_table(packing),
    "Forward and backward passes saved, by the cost model, batches of 64 sequences, for three costs of a ring's step "
    "(docs/hdp.md):": pays_table,
}


DIVISION = (
    "Time of a batch's micro-batches in plain context parallelism's, by the cost model (hybrid_data_parallel_by_time; the bound "
    "knows no waiting; one batch a row; a call is processor time on a busy machine):"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=9, help="batches a row; the tables hold medians")
    parser.add_argument("--packing", type=Path, default=REPO / PACKING, help="the packing module, if not the patch's")
    parser.add_argument("--out", type=Path, help="a markdown file whose part between the markers is replaced")
    parser.add_argument("--mcore-dev", type=Path, metavar="TREE", help="a checkout of Megatron-LM's branch dev")
    parser.add_argument("--division-seeds", type=int, default=1, help="batches a row of the last table")
    args = parser.parse_args()
    packing = load_packing(args.packing)
    program = f"Python {platform.python_version()}"
    command = f"python benchmarks/bench_hdp.py{' --mcore-dev TREE' if args.mcore_dev else ''}"
    blocks = [f"Computed, medians of {args.seeds} batches, {program}. Command: `{command}`."]
    scheduler = mcore_scheduler(args.mcore_dev) if args.mcore_dev else None
    last = functools.partial(division_table, seeds=args.division_seeds)
    tables: dict[str, Callable[[Any, int], list[list[object]]]] = {
        **TABLES,
        DIVISION: lambda packing, seeds: last(packing, scheduler),
    }
    for title, table in tables.items():
        blocks.append("\n".join([title, "", *markdown(table(packing, args.seeds))]))
        print(blocks[-1], file=sys.stderr)
    text = "\n\n".join(blocks) + "\n"
    print(text)
    if args.out:
        write_between_markers(args.out, "bench-hdp", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
