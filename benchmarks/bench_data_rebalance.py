#!/usr/bin/env python3
"""What `data_rebalance` may gain: a simulation of rollouts whose answers have long tails. No figure here is measured.

A batch of `prompts` prompts with `samples` answers each is cut into one contiguous part an engine, in verl's order
(p1 p1 p2 p2 p3 p3) or tiled (p1 p2 p3 p1 p2 p3). Everything else is the same: the lengths, the engines, the time model.

Lengths: log-normal, cut at the longest response. `correlation` is the share of the variance of log length that belongs
to the prompt: 0, all answers are alike whatever the prompt; 1, all answers to a prompt are equally long.

Engine: continuous batching in arrival order, a token a step for each running request. It takes a request when a slot is
free and its tokens fit into the KV cache; when the cache is full the request that came last is set aside, keeps its
tokens, and returns when they fit. With a shared prefix, samples of a prompt on one engine hold its tokens once.

Time: a step takes SMALL_MS on the smallest captured graph, GRAPH_128_MS on that of 128 sequences, in proportion between
and beyond, and up to CACHE_MS more as the cache fills. Engines are either in lockstep, one expert-parallel group, where
each step lasts as long as that of the busiest engine, or independent. The rollout ends with its last request. Prefill,
the first one and that of a request that was set aside, costs no time here.

Plain Python, seeded, about two minutes: `python benchmarks/bench_data_rebalance.py [--out docs/benchmarks.md]`.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
import statistics
import sys
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from markers import write_between_markers

# Steps that are taken together when engines are timed; a rollout has thousands.
BUCKET = 32


@dataclass(frozen=True)
class Workload:
    """A batch: lengths are in tokens, `sigma` is the standard deviation of the logarithm of a response's length."""

    prompts: int
    samples: int = 16
    mean: float = 7345.0
    longest: int = 32768
    sigma: float = 0.8
    correlation: float = 0.5
    prompt_tokens: int = 74


@dataclass(frozen=True)
class Machine:
    """The engines: slots and tokens of KV cache of each, sizes of captured graphs, and how they wait for each other."""

    engines: int = 32
    slots: int = 256
    cache_tokens: int = 35 * 32768
    graphs: tuple[int, ...] = (4, 8, 16, 32, 64, 128, 256)
    lockstep: bool = True


# Milliseconds a step: the smallest graph, the graph of 128 with an empty cache, and what a full cache adds.
SMALL_MS, GRAPH_128_MS, CACHE_MS = 60.0, 125.0, 75.0


@dataclass
class Request:
    """One answer: the prompt that it belongs to, its tokens still to come and those that it has."""

    prompt: int
    left: int
    done: int = 0


@dataclass(frozen=True)
class Piece:
    """Steps [start, end) in which the same requests run; `cache` is the number of tokens held at `start`."""

    start: int
    end: int
    running: int
    cache: int


@dataclass
class Trace:
    """What one engine did: its pieces in order, and how often a request was set aside."""

    pieces: list[Piece] = field(default_factory=list)
    set_aside: int = 0

    @property
    def steps(self) -> int:
        return self.pieces[-1].end if self.pieces else 0


@dataclass(frozen=True)
class Result:
    """A rollout: seconds, the share of them in which the engine that ended first was idle, requests set aside."""

    seconds: float
    first_idle: float
    set_aside: int


def lengths(work: Workload, seed: int) -> list[list[int]]:
    """Tokens of each answer, by prompt; their mean is `work.mean` within a tenth of a percent."""
    rng = random.Random(seed)
    between, within = work.correlation**0.5, (1 - work.correlation) ** 0.5
    hard = [rng.gauss(0, 1) for _ in range(work.prompts)]
    logs = [[between * prompt + within * rng.gauss(0, 1) for _ in range(work.samples)] for prompt in hard]

    def at(scale: float) -> list[list[int]]:
        return [[max(1, min(work.longest, round(scale * math.exp(work.sigma * z)))) for z in row] for row in logs]

    low, high = 0.0, 50.0 * work.longest
    for _ in range(40):
        middle = (low + high) / 2
        too_short = statistics.fmean(length for row in at(middle) for length in row) < work.mean
        low, high = (middle, high) if too_short else (low, middle)
    return at(high)


def grouped(answers: Sequence[Sequence[int]]) -> list[Request]:
    """verl's order: the answers to a prompt one after the other."""
    return [Request(prompt, length) for prompt, row in enumerate(answers) for length in row]


def tiled(answers: Sequence[Sequence[int]]) -> list[Request]:
    """data_rebalance: the first answers to all prompts, then the second ones."""
    return [Request(prompt, row[j]) for j in range(len(answers[0])) for prompt, row in enumerate(answers)]


def chunks(requests: Sequence[Request], engines: int) -> list[list[Request]]:
    """Contiguous parts of equal size, as verl's dispatch cuts a batch; ValueError where they cannot be equal."""
    size, rest = divmod(len(requests), engines)
    if rest:
        raise ValueError(f"{len(requests)} requests cannot be cut into {engines} equal parts")
    return [list(requests[start : start + size]) for start in range(0, len(requests), size)]


class Engine:
    """Continuous batching in the domain of steps. How long a step takes does not change what runs in it."""

    def __init__(self, requests: Sequence[Request], machine: Machine, prompt_tokens: int) -> None:
        self.machine = machine
        self.prompt_tokens = prompt_tokens
        self.waiting = deque(replace(request) for request in requests)
        # By arrival; the finish step of each, in the heap too. A request set aside leaves an entry that is passed over.
        self.running: dict[int, tuple[Request, int]] = {}
        self.finishing: list[tuple[int, int]] = []
        self.arrivals = 0
        self.step = 0
        self.cache = 0
        self.prompts: Counter[int] = Counter()
        self.trace = Trace()

    def run(self) -> Trace:
        self._admit()
        while self.running:
            end = self._next_change()
            self.trace.pieces.append(Piece(self.step, end, len(self.running), self.cache))
            self.cache += (end - self.step) * len(self.running)
            self.step = end
            self._finish()
            if not self._make_room():
                self._admit()
        return self.trace

    def _next_change(self) -> int:
        """The step at which a request ends or the cache has no room for one token more of each."""
        while self._stale(self.finishing[0]):
            heapq.heappop(self.finishing)
        room = self.machine.cache_tokens - self.cache
        full = self.step + max(1, room // len(self.running))
        return min(self.finishing[0][0], full)

    def _stale(self, entry: tuple[int, int]) -> bool:
        end, arrival = entry
        return arrival not in self.running or self.running[arrival][1] != end

    def _finish(self) -> None:
        while self.finishing and (self._stale(self.finishing[0]) or self.finishing[0][0] <= self.step):
            entry = heapq.heappop(self.finishing)
            if not self._stale(entry):
                request, _ = self.running.pop(entry[1])
                self._release(request, request.done + request.left)

    def _make_room(self) -> bool:
        """Sets the latest requests aside until the next step fits; a single one may always go on. True if any was."""
        before = self.trace.set_aside
        while len(self.running) > 1 and self.cache + len(self.running) > self.machine.cache_tokens:
            arrival = max(self.running)
            request, end = self.running.pop(arrival)
            have = request.done + request.left - (end - self.step)
            self._release(request, have)
            self.waiting.appendleft(Request(request.prompt, end - self.step, have))
            self.trace.set_aside += 1
        return self.trace.set_aside > before

    def _release(self, request: Request, tokens: int) -> None:
        self.cache -= tokens
        self.prompts[request.prompt] -= 1
        if not self.prompts[request.prompt]:
            self.cache -= self.prompt_tokens

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.machine.slots:
            request = self.waiting[0]
            needed = request.done + (0 if self.prompts[request.prompt] else self.prompt_tokens)
            fits = self.cache + needed + len(self.running) + 1 <= self.machine.cache_tokens
            if self.running and not fits:
                return
            self.waiting.popleft()
            self.cache += needed
            self.prompts[request.prompt] += 1
            end = self.step + request.left
            self.running[self.arrivals] = (request, end)
            heapq.heappush(self.finishing, (end, self.arrivals))
            self.arrivals += 1


def step_ms(running: int, cache: float, machine: Machine) -> float:
    """Milliseconds that a step of one engine takes."""
    graph = next((size for size in machine.graphs if size >= running), running)
    smallest = machine.graphs[0]
    graph_ms = SMALL_MS + (GRAPH_128_MS - SMALL_MS) * (graph - smallest) / (128 - smallest)
    return graph_ms + CACHE_MS * min(1.0, cache / machine.cache_tokens)


def bucket_ms(trace: Trace, machine: Machine) -> Iterator[float]:
    """Milliseconds of a step in each BUCKET of steps, taken at the bucket's start."""
    pieces = iter(trace.pieces)
    piece = next(pieces, None)
    for start in range(0, trace.steps, BUCKET):
        while piece and piece.end <= start:
            piece = next(pieces, None)
        assert piece is not None
        yield step_ms(piece.running, piece.cache + (start - piece.start) * piece.running, machine)


def rollout(requests: Sequence[Request], machine: Machine, prompt_tokens: int) -> Result:
    """Cuts the batch, runs every engine and times them together."""
    traces = [Engine(part, machine, prompt_tokens).run() for part in chunks(requests, machine.engines)]
    columns = [list(bucket_ms(trace, machine)) for trace in traces]
    if machine.lockstep:
        longest = max(columns, key=len)
        slowest = [max(column[at] for column in columns if at < len(column)) for at in range(len(longest))]
        ends = [sum(slowest[: len(column)]) * BUCKET / 1000 for column in columns]
    else:
        ends = [sum(column) * BUCKET / 1000 for column in columns]
    total = max(ends)
    return Result(total, 1 - min(ends) / total, sum(trace.set_aside for trace in traces))


@dataclass(frozen=True)
class Comparison:
    """Both orders on the same batches: medians over seeds, and the ratio of each batch, lowest first."""

    plain: Result
    spread: Result
    ratios: tuple[float, ...]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)


def compare(work: Workload, machine: Machine, seeds: int) -> Comparison:
    runs: list[tuple[Result, Result]] = []
    for seed in range(seeds):
        answers = lengths(work, seed)
        plain = rollout(grouped(answers), machine, work.prompt_tokens)
        runs.append((plain, rollout(tiled(answers), machine, work.prompt_tokens)))
    ratios = sorted(plain.seconds / spread.seconds for plain, spread in runs)
    return Comparison(_median([plain for plain, _ in runs]), _median([spread for _, spread in runs]), tuple(ratios))


def _median(results: Sequence[Result]) -> Result:
    return Result(
        statistics.median(result.seconds for result in results),
        statistics.median(result.first_idle for result in results),
        round(statistics.median(result.set_aside for result in results)),
    )


CORRELATIONS = (0.0, 0.25, 0.5, 0.75, 0.9)
ENGINES = (2, 4, 8, 16, 32, 64)
CARDS = 32 * 4 / 2  # 32 engines of four devices, two devices a card


def batch(a_rank: int = 128, engines: int = 32, **changes: float) -> Workload:
    """`a_rank` answers an engine, 16 to each prompt."""
    return replace(Workload(prompts=a_rank * engines // 16), **changes)  # type: ignore[arg-type]


def correlations(seeds: int) -> list[list[object]]:
    rows: list[list[object]] = [["correlation", *SECONDS, "idle: engine that ends first", "ratio, independent engines"]]
    for correlation in CORRELATIONS:
        both = compare(batch(correlation=correlation), Machine(), seeds)
        alone = compare(batch(correlation=correlation), Machine(lockstep=False), seeds)
        idle = f"{both.plain.first_idle:.0%}, {both.spread.first_idle:.0%}"
        rows.append([correlation, *_seconds(both), idle, f"{alone.ratio:.2f}"])
    return rows


def engine_numbers(seeds: int) -> list[list[object]]:
    rows: list[list[object]] = [["correlation", *(f"{engines} engines" for engines in ENGINES)]]
    for correlation in CORRELATIONS:
        works = {engines: batch(engines=engines, correlation=correlation) for engines in ENGINES}
        ratios = [compare(work, Machine(engines=engines), seeds).ratio for engines, work in works.items()]
        rows.append([correlation, *(f"{ratio:.2f}" for ratio in ratios)])
    return rows


def memory(seeds: int) -> list[list[object]]:
    rows: list[list[object]] = [["cache, in longest answers", "sigma", "correlation", *SECONDS, "set aside"]]
    for longest in (35, 12, 6):
        machine = Machine(cache_tokens=longest * 32768)
        for sigma, correlation in ((0.8, 0.5), (0.8, 0.9), (1.2, 0.5), (1.2, 0.9)):
            both = compare(batch(sigma=sigma, correlation=correlation), machine, seeds)
            set_aside = f"{both.plain.set_aside:,}, {both.spread.set_aside:,}"
            rows.append([longest, sigma, correlation, *_seconds(both), set_aside])
    return rows


def slots(seeds: int) -> list[list[object]]:
    rows: list[list[object]] = [["slots", *SECONDS]]
    for number in (24, 64, 128):
        rows.append([number, *_seconds(compare(batch(correlation=0.9), Machine(slots=number), seeds))])
    return rows


def batches(seeds: int) -> list[list[object]]:
    rows: list[list[object]] = [["answers a rank", *SECONDS, "tokens/s a card"]]
    for a_rank in (64, 128, 192, 256):
        work = batch(a_rank, correlation=0.9)
        both = compare(work, Machine(), seeds)
        tokens = work.prompts * work.samples * work.mean
        rates = [tokens / result.seconds / CARDS for result in (both.plain, both.spread)]
        rows.append([a_rank, *_seconds(both), f"{rates[0]:.0f}, {rates[1]:.0f}"])
    return rows


def prefixes(seeds: int) -> list[list[object]]:
    """What is lost: tokens of prompts that an engine prefills, and the ratio with them in its cache."""
    rows: list[list[object]] = [["prompt tokens", "prefilled an engine: plain", "rebalanced", "ratio"]]
    for tokens in (74, 2048, 8192):
        both = compare(batch(correlation=0.9, prompt_tokens=tokens), Machine(), seeds)
        rows.append([f"{tokens:,}", f"{128 // 16 * tokens:,}", f"{128 * tokens:,}", f"{both.ratio:.2f}"])
    return rows


TABLES = {
    "32 engines in lockstep, 128 answers each, 16 a prompt, mean 7,345 of at most 32,768 tokens, sigma 0.8:": correlations,
    "The ratio for other numbers of engines, 128 answers each (fewer than 16 share a prompt's answers):": engine_numbers,
    "Fewer slots an engine, correlation 0.9:": slots,
    "Larger batches, correlation 0.9 (tokens/s: plain, rebalanced; an engine is two cards):": batches,
    "Less memory, longer tails (`set aside`: requests, plain and rebalanced):": memory,
    "Longer prompts, correlation 0.9, where each of 16 engines prefills a prompt instead of one:": prefixes,
}
SECONDS = ("plain", "rebalanced", "ratio (lowest to highest)")


def _seconds(both: Comparison) -> tuple[str, str, str]:
    ratio = f"**{both.ratio:.2f}** ({both.ratios[0]:.2f} to {both.ratios[-1]:.2f})"
    return f"{both.plain.seconds:,.0f} s", f"{both.spread.seconds:,.0f} s", ratio


def _markdown(rows: Sequence[Sequence[object]]) -> list[str]:
    lines = [f"| {' | '.join(map(str, row))} |" for row in rows]
    return [lines[0], "|---" * len(rows[0]) + "|", *lines[1:]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=9, help="batches a row; the table holds medians")
    parser.add_argument("--out", type=Path, help="a markdown file whose part between the markers is replaced")
    args = parser.parse_args()
    blocks = [f"Simulated, medians of {args.seeds} batches. Command: `python benchmarks/bench_data_rebalance.py`."]
    for title, table in TABLES.items():
        blocks.append("\n".join([title, "", *_markdown(table(args.seeds))]))
        print(blocks[-1], file=sys.stderr)
    text = "\n\n".join(blocks) + "\n"
    print(text)
    if args.out:
        write_between_markers(args.out, "bench-data-rebalance", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
