"""What test_rollout_rebalance_planner.py holds the planner against: its cost written out anew, and all plans there are."""

from __future__ import annotations

import importlib.util
import itertools
import random
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from harness import Upstream

FOLDER = "verl/workers/rollout/vllm_rollout/rebalance"


def planner_of(upstream: Upstream) -> Any:
    """The planner of the tree under test, loaded without verl: it needs nothing but the standard library."""
    folder = upstream.tree("verl") / FOLDER
    assert (folder / "planner.py").is_file(), "the tree has no planner"
    package = f"rebalance_under_test_{abs(hash(str(folder)))}"
    if package not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            package, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec and spec.loader
        sys.modules[package] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[package])
    return importlib.import_module(f"{package}.planner")


def need(request: Any, policy: Any) -> int:
    """KV blocks that a request holds when it has grown as far as the policy looks ahead."""
    growth = policy.growth_tokens
    if request.expected_tokens is not None:
        growth = min(growth, request.expected_tokens)
    full = (request.tokens + growth + policy.block_size - 1) // policy.block_size
    return int(max(full, request.blocks))


class Group:
    """The ranks as plain dictionaries, to which moves are applied one by one."""

    def __init__(self, states: Sequence[Any]) -> None:
        self.states = {state.rank: state for state in states}
        self.running = {state.rank: {one.request_id: one for one in state.running} for state in states}
        self.waiting = {state.rank: {one.request_id: one for one in state.waiting} for state in states}
        self.free = {state.rank: state.free_blocks for state in states}

    def apply(self, moves: Sequence[Any]) -> Group:
        for move in moves:
            key = (move.source, move.request_id)
            if move.waiting:
                self.waiting[move.destination][key] = self.waiting[move.source].pop(move.request_id)
            else:
                request = self.running[move.source].pop(move.request_id)
                self.running[move.destination][key] = request
                self.free[move.source] += request.blocks
                self.free[move.destination] -= request.blocks
        return self

    def graph(self, policy: Any) -> float:
        largest = 0
        for rank, state in self.states.items():
            largest = max(largest, min(len(self.running[rank]) + len(self.waiting[rank]), state.max_num_seqs))
        fitting = [size for size in policy.graph_sizes if size >= largest * policy.tokens_per_request]
        return (min(fitting) if fitting else float("inf")) if largest else 0

    def stranded(self, rank: int, policy: Any) -> int:
        state = self.states[rank]
        blocks = self.free[rank] - int(policy.reserve * state.total_blocks)
        for one in self.running[rank].values():
            blocks -= need(one, policy) - one.blocks
        admitted = 0
        for one in self.waiting[rank].values():
            blocks -= need(one, policy)
            if blocks < 0 or len(self.running[rank]) + admitted == state.max_num_seqs:
                break
            admitted += 1
        return len(self.waiting[rank]) - admitted

    def spare(self, rank: int, policy: Any) -> int:
        """Blocks left when everything that runs or waits there has what it needs."""
        state = self.states[rank]
        missing = sum(need(one, policy) - one.blocks for one in self.running[rank].values())
        missing += sum(need(one, policy) for one in self.waiting[rank].values())
        return int(self.free[rank] - int(policy.reserve * state.total_blocks) - missing)


def cost(states: Sequence[Any], moves: Sequence[Any], policy: Any) -> tuple[float, int, int, int]:
    """The goals in their order: graph, stranded requests, moves, blocks sent."""
    group = Group(states).apply(moves)
    stranded = sum(group.stranded(rank, policy) for rank in group.states)
    return group.graph(policy), stranded, len(moves), sum(0 if one.waiting else one.blocks for one in moves)


def broken_limits(states: Sequence[Any], moves: Sequence[Any], policy: Any) -> list[str]:
    """The limits of every plan that these moves break; none for a good plan."""
    before = Group(states)
    faults = []
    if len({(one.source, one.request_id) for one in moves}) != len(moves):
        faults.append("a request moves twice")
    if {one.source for one in moves} & {one.destination for one in moves}:
        faults.append("a rank gives and takes")
    for rank, state in before.states.items():
        arrivals = [one for one in moves if one.destination == rank]
        requests = [(before.waiting if one.waiting else before.running)[one.source][one.request_id] for one in arrivals]
        if not arrivals:
            continue
        if sum(need(one, policy) for one in requests) > before.spare(rank, policy):
            faults.append(f"rank {rank} is flooded with blocks")
        if len(arrivals) + len(before.running[rank]) + len(before.waiting[rank]) > state.max_num_seqs:
            faults.append(f"rank {rank} is flooded with requests")
        faults += [f"{one.request_id} is pinned" for one in requests if not one.movable]
    return faults


def all_plans(planner: Any, states: Sequence[Any], policy: Any) -> Iterator[list[Any]]:
    """Every assignment of movable requests to ranks that keeps the limits, as moves in the planner's order."""
    ranks = [state.rank for state in states]
    movable = [
        (state.rank, one, waiting)
        for state in states
        for waiting, requests in ((False, state.running), (True, state.waiting))
        for one in requests
        if one.movable
    ]
    for targets in itertools.product(ranks, repeat=len(movable)):
        moves = [
            planner.Move(one.request_id, home, target, waiting, 0 if waiting else one.blocks)
            for (home, one, waiting), target in zip(movable, targets, strict=True)
            if target != home
        ]
        if {one.source for one in moves} & {one.destination for one in moves}:
            continue
        if not broken_limits(states, moves, policy):
            yield sorted(moves, key=lambda one: (not one.waiting, one.source, one.request_id))


def small_case(planner: Any, rng: random.Random, queues: bool = True) -> tuple[list[Any], Any]:
    """Two to four ranks with at most eight requests in all, tight in slots, in blocks, or in neither."""
    ranks = rng.choice((2, 3, 3, 4))
    total = rng.randint(1, {2: 8, 3: 6, 4: 5}[ranks])
    policy = planner.Policy(
        rng.choice(((1, 2, 4, 8), (2, 4), (1, 2, 3, 4, 5, 6), (2, 4, 8))),
        block_size=4,
        growth_tokens=rng.choice((0, 0, 3, 8)),
        reserve=rng.choice((0.0, 0.0, 0.1)),
        tokens_per_request=rng.choice((1, 1, 1, 2)),
    )
    weights = [rng.random() ** 2 for _ in range(ranks)]
    homes = rng.choices(range(ranks), weights, k=total)
    longest = rng.choice((8, 12, 24))
    states = []
    for rank in range(ranks):
        blocks, slots = rng.choice((6, 8, 12, 20, 100)), rng.choice((2, 3, 4, 8))
        running: list[Any] = []
        waiting: list[Any] = []
        free = blocks
        for at in (at for at in range(total) if homes[at] == rank):
            tokens = rng.randint(1, longest)
            held = -(-tokens // 4)
            rest = rng.choice((None, None, rng.randint(1, 10)))
            if not waiting and len(running) < slots and held <= free and rng.random() < (0.8 if queues else 1):
                running.append(planner.RequestState(f"r{at}", held, tokens, rest, rng.random() > 0.1))
                free -= held
            elif queues:
                waiting.append(planner.RequestState(f"r{at}", 0, tokens, rest, rng.random() > 0.1))
        states.append(planner.RankState(rank, running, waiting, free, blocks, slots))
    return states, policy


def large_case(planner: Any, rng: random.Random, ranks: int = 32) -> tuple[list[Any], Any]:
    """A group in the middle of a rollout: uneven, with full caches and with queues here and there."""
    policy = planner.Policy((4, 8, 16, 32, 64, 128), growth_tokens=rng.choice((0, 64, 512)), reserve=0.02)
    mean, total = rng.choice((3, 14, 30, 60)), rng.choice((600, 2000, 6000))
    states = []
    for rank in range(ranks):
        free, running = total, []
        for at in range(max(0, round(rng.gauss(mean, mean / 3)))):
            tokens = rng.randint(1, 12000)
            held = -(-tokens // policy.block_size)
            if held <= free and len(running) < 64:
                running.append(planner.RequestState(f"{rank}-{at}", held, tokens))
                free -= held
        queues = range(rng.choice((0, 0, 0, 9)))
        queue = [planner.RequestState(f"{rank}-w{at}", 0, rng.randint(1, 4000)) for at in queues]
        states.append(planner.RankState(rank, running, queue, free, total, 64))
    return states, policy
