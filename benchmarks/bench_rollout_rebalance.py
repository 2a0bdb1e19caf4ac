#!/usr/bin/env python3
"""What `rollout_rebalance` may gain: a simulation of a rollout in lockstep that calls the patch's planner.

Nothing here is measured but the time of `plan()`. The engines and their clock are in lockstep_rollout.py, the lengths
(log-normal, cut at the longest answer) are those of bench_data_rebalance.py. Compared on the same batches: one captured
graph size; several; several with a plain greedy; with the planner going by graph size alone; with the planner that is
told the times; loads that are even in every step; and a bound that no order of the same tokens can pass.

Plain Python, seeded, a few minutes: `python benchmarks/bench_rollout_rebalance.py [--out docs/benchmarks.md]`.
"""

from __future__ import annotations

import argparse
import importlib
import math
import platform
import random
import statistics
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import bench_data_rebalance
from bench_data_rebalance import Workload, chunks, grouped, lengths, tiled
from lockstep_rollout import BLOCK, TICK, Balance, Clock, Job, Machine, Result, rollout
from markers import write_between_markers

REPO = Path(__file__).resolve().parents[1]
PLANNER = min(REPO.glob("patches/verl/*/*/files/verl/workers/rollout/vllm_rollout/rebalance"))
# Steps for which the planner counts what a smaller graph or a less full cache saves. With 512 a rollout is 0.2 % shorter at
# 5 GB/s and 4 % longer at 0.5 GB/s, where it thinks too many moves too dear; 2048 changes either by less than 1 %.
HORIZON = 1024


@dataclass(frozen=True)
class Case:
    """A batch and a group: `a_rank` answers for each engine, 16 to a prompt."""

    work: Workload
    machine: Machine

    def parts(self, seed: int, spread: bool = False) -> list[list[Job]]:
        answers = lengths(self.work, seed)
        prompt = self.work.prompt_tokens
        order = (tiled if spread else grouped)(answers)
        return [
            [Job(f"{rank}-{at}", one.left + prompt, one.left) for at, one in enumerate(part)]
            for rank, part in enumerate(chunks(order, self.machine.engines))
        ]


def case(correlation: float, mean: float = 7345.0, a_rank: int = 256, **machine: Any) -> Case:
    group = Machine(**machine)
    work = Workload(prompts=a_rank * group.engines // 16, mean=mean, correlation=correlation)
    return Case(work, group)


def policy(planner: Any, machine: Machine, times: bool) -> Any:
    model = planner.Times(
        step=tuple(machine.clock.graph_ms(size, machine.span) / 1000 for size in machine.sizes),
        horizon_steps=HORIZON,
        pause=machine.pause,
        block=machine.kv_bytes * BLOCK / machine.link,
        cache=machine.clock.cache / 1000,
    )
    return planner.Policy(machine.sizes, BLOCK, growth_tokens=machine.interval, times=model if times else None)


def greedy(planner: Any, states: Sequence[Any], policy: Any) -> list[Any]:
    """Waiting requests that do not fit to the rank with least requests, then what a rank has above the average, last come
    first, to the rank with most free KV blocks. It looks at no graph and counts no moves, but it floods nobody."""
    load = {state.rank: len(state.running) + len(state.waiting) for state in states}
    free = {state.rank: planner.spare_blocks(state, policy) for state in states}
    slots = {state.rank: state.max_num_seqs for state in states}
    moves: list[Any] = []

    def move(request: Any, source: int, waiting: bool, limit: int, key: Callable[[int], Any]) -> bool:
        need = policy.need(request)
        able = [rank for rank in load if rank != source and load[rank] < min(limit, slots[rank]) and free[rank] >= need]
        if not able:
            return False
        target = min(able, key=key)
        moves.append(planner.Move(request.request_id, source, target, waiting, 0 if waiting else request.blocks))
        for rank, sign in ((source, -1), (target, 1)):
            load[rank] += sign
            free[rank] -= sign * need
        return True

    for state in states:
        for request in reversed(planner.stranded_at(state, policy)):
            if not move(request, state.rank, True, sys.maxsize, lambda rank: (load[rank], rank)):
                break
    average = -(-sum(load.values()) // len(load))
    for state in states:
        for request in reversed(state.running):
            if load[state.rank] <= average:
                break
            if not move(request, state.rank, False, average, lambda rank: (-free[rank], rank)):
                break
    return moves


def balances(planner: Any, machine: Machine) -> dict[str, Balance]:
    plain, timed = policy(planner, machine, times=False), policy(planner, machine, times=True)
    measured = replace(timed, times=replace(timed.times, cache=0.0))  # rebalance/step_times.py fills no cache
    return {
        "greedy": lambda states: greedy(planner, states, plain),
        "planner": lambda states: planner.plan(states, plain),
        "planner with times": lambda states: planner.plan(states, timed),
        AS_MEASURED: lambda states: planner.plan(states, measured),
    }


def even_loads(parts: Sequence[Sequence[Job]], machine: Machine) -> float:
    """Seconds with all requests started at once and the same load and cache on every engine in every step; NaN where
    slots or caches do not hold them all."""
    jobs = sorted((job.left, job.total - job.left) for part in parts for job in part)
    ends = [left for left, _ in jobs]
    prompt = jobs[0][1]
    seconds = 0.0
    for step in range(0, ends[-1], TICK):
        alive = len(ends) - bisect_right(ends, step)
        load, cache = -(-alive // machine.engines), alive * (step + prompt) / machine.engines
        if load > machine.slots or cache > machine.cache_tokens:
            return float("nan")
        seconds += TICK * machine.step_ms(load, cache) / 1000
    return seconds


def bound(parts: Sequence[Sequence[Job]], machine: Machine) -> float:
    """Seconds that no order of the same tokens can pass, as the clock is a line: as many steps as the longest answer, all
    tokens through graphs without padding, and the cache that the tokens read spread evenly over the engines."""
    jobs = [job for part in parts for job in part]
    longest = max(job.left for job in jobs)
    low, high = min(machine.span), max(machine.span)
    slope = (machine.clock.large - machine.clock.small) / (high - low)
    tokens = max(sum(job.left for job in jobs) / machine.engines, low * longest)
    read = sum(job.left * (job.total - job.left) + job.left * (job.left - 1) / 2 for job in jobs) / machine.engines
    ms = (machine.clock.small - slope * low) * longest + slope * tokens
    return float(ms + machine.clock.cache * read / machine.cache_tokens) / 1000


@dataclass
class Row:
    """All methods on one batch."""

    results: dict[str, Result]
    even: float
    bound: float


METHODS = ("one size", "several", "greedy", "planner", "planner with times")
AS_MEASURED = "planner with times, as the patch measures them"


def compare(planner: Any, one: Case, seed: int, methods: Sequence[str] = METHODS, spread: bool = False) -> Row:
    machine = one.machine
    results = {}
    for method in methods:
        group = replace(machine, sizes=(max(machine.sizes),)) if method == "one size" else machine
        results[method] = rollout(one.parts(seed, spread), group, balances(planner, machine).get(method), planner)
    parts = one.parts(seed, spread)
    return Row(results, even_loads(parts, machine), bound(parts, machine))


def median(rows: Sequence[Row], method: str, what: str = "seconds") -> float:
    return float(statistics.median(getattr(row.results[method], what) for row in rows))


def seconds_line(rows: Sequence[Row], methods: Sequence[str] = METHODS) -> list[str]:
    """Seconds of each method, with the share of the first; even loads and bound."""
    first = median(rows, methods[0])
    even, low = (statistics.median(values) for values in ([r.even for r in rows], [r.bound for r in rows]))
    values = [median(rows, method) for method in methods] + [even, low]
    return ["-" if math.isnan(value) else f"{value:,.0f} ({value / first:.2f})" for value in values]


SECONDS = [*METHODS, "even loads", "bound"]
MOVING = ["running moved", "waiting moved", "GB a device", "paused"]


def moving_line(rows: Sequence[Row], method: str) -> list[str]:
    numbers = [median(rows, method, what) for what in ("running_moved", "waiting_moved", "gigabytes")]
    return [*(f"{number:,.0f}" for number in numbers), f"{median(rows, method, 'paused'):.0f} s"]


def published_235b(planner: Any, seeds: int) -> list[list[object]]:
    rows: list[list[object]] = [["clock", "correlation", *SECONDS]]
    for name, clock in (("60, 125 + 75", Clock()), ("60, 200", Clock(large=200.0, cache=0.0))):
        for correlation in (0.0, 0.5, 0.9):
            one = case(correlation, clock=clock)
            rows.append([name, correlation, *seconds_line([compare(planner, one, seed) for seed in range(seeds)])])
    return rows


def what_moves(planner: Any, seeds: int) -> list[list[object]]:
    rows: list[list[object]] = [["method", "seconds", *MOVING, "exchanges"]]
    one = case(0.5)
    results = [compare(planner, one, seed, METHODS[1:]) for seed in range(seeds)]
    for method in METHODS[1:]:
        exchanges = f"{median(results, method, 'exchanges'):.0f}"
        rows.append([method, f"{median(results, method):,.0f}", *moving_line(results, method), exchanges])
    return rows


def as_shipped(planner: Any, seeds: int) -> list[list[object]]:
    """The recipe qwen3-235b/grpo-rebalance: data_rebalance spreads a prompt's answers first."""
    methods = (*METHODS[1:], AS_MEASURED)
    rows: list[list[object]] = [["clock", "link", *methods, *SECONDS[-2:]]]
    both = {"60, 125 + 75": Clock(), "60, 200": Clock(large=200.0, cache=0.0)}
    for name, link in (("60, 125 + 75", 5e9), ("60, 125 + 75", 0.5e9), ("60, 125 + 75", 0.1e9), ("60, 200", 5e9)):
        one = case(0.5, clock=both[name], link=link)
        results = [compare(planner, one, seed, methods, spread=True) for seed in range(seeds)]
        rows.append([name, f"{link / 1e9:g} GB/s", *seconds_line(results, methods)])
    return rows


def published_deepseek(planner: Any, seeds: int) -> list[list[object]]:
    rows: list[list[object]] = [["mean length", "correlation", *SECONDS]]
    clock = Clock(large=200.0, cache=0.0)
    for mean, correlation in ((2500.0, 0.25), (2500.0, 0.5), (3500.0, 0.0), (3500.0, 0.25), (7345.0, 0.25)):
        one = case(correlation, mean, 64, engines=64, slots=64, sizes=(4, 8, 16, 32, 64), span=(4, 64), clock=clock)
        results = [compare(planner, one, seed) for seed in range(seeds)]
        rows.append([f"{mean:,.0f}", correlation, *seconds_line(results)])
    return rows


def waiting(planner: Any, seeds: int) -> list[list[object]]:
    methods = METHODS[1:]
    rows: list[list[object]] = [
        ["slots", "cache, in longest answers", *SECONDS[1:], "moved by `planner`: running", "waiting"]
    ]
    for slots, longest in ((64, 35), (128, 35), (256, 12)):
        one = case(0.5, slots=slots, cache_tokens=longest * 32768)
        results = [compare(planner, one, seed, methods) for seed in range(seeds)]
        rows.append([slots, longest, *seconds_line(results, methods), *moving_line(results, "planner")[:2]])
    return rows


def settings(planner: Any, seeds: int) -> list[list[object]]:
    methods = ("several", "planner", "planner with times", "greedy")
    rows: list[list[object]] = [["steps between plans", "link", *methods]]
    for interval, link in ((32, 5e9), (128, 5e9), (512, 5e9), (2048, 5e9), (128, 0.5e9), (128, 50e9)):
        one = case(0.5, interval=interval, link=link)
        results = [compare(planner, one, seed, methods) for seed in range(seeds)]
        cells = [f"{median(results, m):,.0f} ({median(results, m, 'paused'):.0f} paused)" for m in methods[1:]]
        rows.append([interval, f"{link / 1e9:g} GB/s", f"{median(results, methods[0]):,.0f}", *cells])
    return rows


def group_states(planner: Any, ranks: int, mean: int, waiting: int, seed: int) -> list[Any]:
    """Ranks with `mean` running requests, half of them 12 above and half 12 below or so."""
    rng = random.Random(seed)
    result = []
    for rank in range(ranks):
        tokens = [rng.randint(100, 12000) for _ in range(mean + (12 if rank % 2 else -12) + rng.randint(-4, 4))]
        running = [
            planner.RequestState(f"{at}-{rng.getrandbits(32):08x}", -(-n // BLOCK), n) for at, n in enumerate(tokens)
        ]
        queue = [planner.RequestState(f"w{at}", 0, 74) for at in range(waiting if rank % 2 else 0)]
        free = max(0, 15000 - sum(one.blocks for one in running))
        result.append(planner.RankState(rank, running, queue, free, 15000, 320))
    return result


def plan_times(planner: Any, seeds: int) -> list[list[object]]:
    """Milliseconds of processor time of one plan(): fastest of five, slowest of the seeds."""
    rows: list[list[object]] = [
        ["ranks", "requests a rank", "waiting on every other rank", "moves", "ms", "ms with times"]
    ]
    machine = Machine()
    for ranks in (32, 64):
        for mean, waits in ((250, 0), (256, 0), (256, 80), (124, 0), (28, 0)):
            found = []
            for seed in range(seeds):
                given = group_states(planner, ranks, mean, waits, seed)
                spent = [_fastest(planner, given, policy(planner, machine, times)) for times in (False, True)]
                found.append((*spent, len(planner.plan(given, policy(planner, machine, False)))))
            slowest = [f"{max(one[at] for one in found):.1f}" for at in (0, 1)]
            rows.append([ranks, mean, waits, max(one[2] for one in found), *slowest])
    return rows


def _fastest(planner: Any, given: Sequence[Any], settings: Any) -> float:
    best = math.inf
    for _ in range(5):
        start = time.process_time()
        planner.plan(given, settings)
        best = min(best, time.process_time() - start)
    return best * 1000


def agreement(planner: Any, seeds: int) -> list[list[object]]:
    """The engines of lockstep_rollout.py without moves against those of bench_data_rebalance.py, on one line of graphs."""
    rows: list[list[object]] = [["correlation", "slots", "cache, in longest answers", "bench_data_rebalance", "here"]]
    line = bench_data_rebalance.GRAPH_128_MS - bench_data_rebalance.SMALL_MS
    clock = Clock(large=bench_data_rebalance.SMALL_MS + line * (256 - 4) / (128 - 4))
    for correlation, slots, longest in ((0.5, 256, 35), (0.9, 128, 35), (0.5, 256, 12)):
        one = case(correlation, slots=slots, cache_tokens=longest * 32768, clock=clock)
        other = bench_data_rebalance.Machine(slots=slots, cache_tokens=longest * 32768)
        theirs, ours = [], []
        for seed in range(seeds):
            requests = grouped(lengths(one.work, seed))
            theirs.append(bench_data_rebalance.rollout(requests, other, one.work.prompt_tokens).seconds)
            ours.append(rollout(one.parts(seed), one.machine, None).seconds)
        cells = [f"{statistics.median(values):,.0f} s" for values in (theirs, ours)]
        rows.append([correlation, slots, longest, *cells])
    return rows


TABLES: dict[str, Callable[[Any, int], list[list[object]]]] = {
    "235B: 32 engines, 256 answers each, mean 7,345 of at most 32,768 tokens, in seconds (share of one size):": published_235b,
    "The same at correlation 0.5 with the first clock, what moves (several sizes):": what_moves,
    "The recipe qwen3-235b/grpo-rebalance, with data_rebalance on, correlation 0.5 (share of several):": as_shipped,
    "DeepSeek-V3: 64 engines, 64 answers each, sizes 4 to 64, clock 60, 200 (share of one size):": published_deepseek,
    "Where requests wait, correlation 0.5, first clock (share of several):": waiting,
    "How often to plan, and how fast KV moves, correlation 0.5, first clock:": settings,
    "Without moves, against the engines of bench_data_rebalance, which go from event to event:": agreement,
    "Processor time of one `plan()`, plain Python:": plan_times,
}


def load_planner(folder: Path) -> Any:
    """The patch's planner without verl: its folder is a package that needs nothing else."""
    if not (folder / "planner.py").is_file():
        raise SystemExit(f"{folder}: no planner.py; give the folder with --planner")
    sys.path.insert(0, str(folder.parent))
    module = importlib.import_module(f"{folder.name}.planner")
    assert Path(module.__file__ or "").resolve() == (folder / "planner.py").resolve()
    return module


def _markdown(rows: Sequence[Sequence[object]]) -> list[str]:
    lines = [f"| {' | '.join(map(str, row))} |" for row in rows]
    return [lines[0], "|---" * len(rows[0]) + "|", *lines[1:]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--planner", type=Path, default=PLANNER, help="the patch's folder with planner.py")
    parser.add_argument("--seeds", type=int, default=3, help="batches a row; the tables hold medians")
    parser.add_argument("--out", type=Path, help="a markdown file whose part between the markers is replaced")
    args = parser.parse_args()
    planner = load_planner(args.planner.resolve())
    python = f"Python {platform.python_version()}, {platform.machine()}"
    blocks = [
        f"Simulated, medians of {args.seeds} batches; the last table is measured ({python}). "
        "Command: `python benchmarks/bench_rollout_rebalance.py`."
    ]
    for title, table in TABLES.items():
        blocks.append("\n".join([title, "", *_markdown(table(planner, args.seeds))]))
        print(blocks[-1], file=sys.stderr, flush=True)
    text = "\n\n".join(blocks) + "\n"
    print(text)
    if args.out:
        write_between_markers(args.out, "bench-rollout-rebalance", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
