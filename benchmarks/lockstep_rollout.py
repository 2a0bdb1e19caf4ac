"""A rollout of engines in lockstep that may exchange requests: the simulation under bench_rollout_rebalance.py.

Each engine batches continuously: a token a step for each running request, a request is admitted when a slot is free and
its tokens fit into the KV cache, and when the cache is full the request that came last is set aside, loses its cache and
waits at the head of the queue. All engines of the group step together: a step lasts as long as the graph of the largest
batch and the fullest cache make it. Requests end, are admitted and move at multiples of TICK steps only.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

# Steps that are taken together: a rollout has tens of thousands.
TICK = 16
BLOCK = 128


@dataclass(frozen=True)
class Clock:
    """Milliseconds of a step: `small` on the smallest graph, `large` on the largest, on a line between by size; and up
    to `cache` more, in proportion to how full the fullest cache is."""

    small: float = 60.0
    large: float = 125.0
    cache: float = 75.0

    def graph_ms(self, size: int, sizes: Sequence[int]) -> float:
        low, high = min(sizes), max(sizes)
        return self.small + (self.large - self.small) * (size - low) / max(1, high - low)


@dataclass(frozen=True)
class Machine:
    """The group. `sizes` are captured graphs; `span` are those between which Clock draws its line (as a single captured
    size has none). `kv_bytes` a token and device, `link` bytes a second of a device, `pause` and `check` seconds: of the
    group for an exchange, and for collecting states and planning."""

    engines: int = 32
    slots: int = 256
    cache_tokens: int = 35 * 32768
    sizes: tuple[int, ...] = (4, 8, 16, 32, 64, 128, 256)
    span: tuple[int, ...] = (4, 256)
    clock: Clock = field(default_factory=Clock)
    interval: int = 128
    kv_bytes: float = 1.47e9 / 32768
    link: float = 5e9
    pause: float = 0.2
    check: float = 0.02

    def captured(self, batch: int) -> int:
        """The graph of a batch; a larger one than the largest runs without and is taken as its own size."""
        return min((size for size in self.sizes if size >= batch), default=batch)

    def step_ms(self, batch: int, cache: float) -> float:
        graph = self.clock.graph_ms(self.captured(batch), self.span)
        return graph + self.clock.cache * min(1.0, cache / self.cache_tokens)


@dataclass
class Job:
    """One request: `total` tokens with its prompt when it ends, `left` to come when it does not run, `end` its last step."""

    name: str
    total: int
    left: int
    end: int = 0

    def tokens(self, now: int) -> int:
        return self.total - (self.end - now)


class Engine:
    """One data-parallel rank."""

    def __init__(self, rank: int, jobs: Sequence[Job], machine: Machine) -> None:
        self.rank = rank
        self.machine = machine
        self.waiting = deque(jobs)
        # In order of arrival. What left has an entry in the heap that is passed over.
        self.running: dict[str, Job] = {}
        self.ends: list[tuple[int, str]] = []
        self.cache = 0
        self.set_aside = 0

    def busy(self) -> bool:
        return bool(self.running or self.waiting)

    def tick(self, now: int) -> None:
        """What changes between two steps: ends, room, admissions."""
        while self.ends and self.ends[0][0] <= now:
            end, name = heapq.heappop(self.ends)
            if name in self.running and self.running[name].end == end:
                self.leave(name, now)
        limit = self.machine.cache_tokens
        before = self.set_aside
        while len(self.running) > 1 and self.cache + TICK * len(self.running) > limit:
            job = self.leave(next(reversed(self.running)), now)
            job.left = job.end - now
            self.waiting.appendleft(job)
            self.set_aside += 1
        if self.set_aside == before:
            self._admit(now)

    def _admit(self, now: int) -> None:
        while self.waiting and len(self.running) < self.machine.slots:
            job = self.waiting[0]
            needed = job.total - job.left + TICK * (len(self.running) + 1)
            if self.running and self.cache + needed > self.machine.cache_tokens:
                return
            self.waiting.popleft()
            job.end = now + job.left
            self.join(job, now)

    def join(self, job: Job, now: int) -> None:
        """A request runs here from now on."""
        self.running[job.name] = job
        self.cache += job.tokens(now)
        heapq.heappush(self.ends, (job.end, job.name))

    def leave(self, name: str, now: int) -> Job:
        """A request runs here no longer; its cache is free."""
        job = self.running.pop(name)
        self.cache -= job.tokens(now)
        return job

    def step(self) -> None:
        self.cache += TICK * len(self.running)


@dataclass
class Result:
    """A rollout: seconds, and what moving cost within them."""

    seconds: float = 0.0
    running_moved: int = 0
    waiting_moved: int = 0
    gigabytes: float = 0.0
    paused: float = 0.0
    set_aside: int = 0
    exchanges: int = 0


# From the states of all ranks to moves: verl's planner, or another with its types.
Balance = Callable[[list[Any]], Sequence[Any]]


def states(engines: Sequence[Engine], now: int, types: Any) -> list[Any]:
    """What the planner is told; `types` is its module."""
    request, result = types.RequestState, []
    for engine in engines:
        running, used = [], 0
        for job in engine.running.values():
            tokens = job.total - job.end + now
            blocks = -(-tokens // BLOCK)
            used += blocks
            running.append(request(job.name, blocks, tokens))
        waiting = [request(job.name, 0, job.total - job.left) for job in engine.waiting]
        total = engine.machine.cache_tokens // BLOCK
        result.append(types.RankState(engine.rank, running, waiting, max(0, total - used), total, engine.machine.slots))
    return result


def exchange(engines: Sequence[Engine], moves: Sequence[Any], now: int, result: Result) -> float:
    """Carries moves out; the seconds that the group pauses. The engine that sends or takes most decides."""
    machine = engines[0].machine
    traffic: dict[tuple[str, int], float] = {}
    by_name = {job.name: job for engine in engines for job in engine.waiting} if any(m.waiting for m in moves) else {}
    gone: dict[int, set[str]] = {}
    for move in moves:
        if move.waiting:
            gone.setdefault(move.source, set()).add(move.request_id)
            engines[move.destination].waiting.append(by_name[move.request_id])
            result.waiting_moved += 1
            continue
        job = engines[move.source].leave(move.request_id, now)
        engines[move.destination].join(job, now)
        sent = job.tokens(now) * machine.kv_bytes
        for end in (("sends", move.source), ("takes", move.destination)):
            traffic[end] = traffic.get(end, 0.0) + sent
        result.running_moved += 1
        result.gigabytes += sent / 1e9
    for source, names in gone.items():
        engines[source].waiting = deque(job for job in engines[source].waiting if job.name not in names)
    result.exchanges += 1
    return machine.pause + max(traffic.values(), default=0.0) / machine.link


def rollout(parts: Sequence[Sequence[Job]], machine: Machine, balance: Balance | None, types: Any = None) -> Result:
    """Runs all requests to their ends."""
    engines = [Engine(rank, part, machine) for rank, part in enumerate(parts)]
    result = Result()
    now = 0
    while True:
        for engine in engines:
            engine.tick(now)
        if not any(engine.busy() for engine in engines):
            break
        if balance and now % machine.interval == 0:
            paused = machine.check
            if moves := balance(states(engines, now, types)):
                paused += exchange(engines, moves, now, result)
                for engine in engines:
                    engine.tick(now)
            result.paused += paused
        batch = max(len(engine.running) for engine in engines)
        cache = max(engine.cache for engine in engines)
        result.seconds += TICK * machine.step_ms(batch, cache) / 1000
        for engine in engines:
            engine.step()
        now += TICK
    result.seconds += result.paused
    result.set_aside = sum(engine.set_aside for engine in engines)
    return result
