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
"""What the planner of rollout_rebalance is told, what it answers, and what a plan costs. Standard library only.

A rank's *load* is what it runs and what waits there, at most `max_num_seqs`: what waits will run as soon as there is
room. A request's *need* is the KV blocks that it will hold after `growth_tokens` more tokens. A rank's *spare* blocks
are those that stay free when everything that runs or waits there has what it needs and the reserve is kept. Waiting
requests that do not fit, in the order of the queue, are *stranded*, and their rank is *flooded*.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

# A load above the largest captured graph runs without one; larger than any size, so that any graph is better.
UNCAPTURED = 1 << 30


class RequestState(NamedTuple):
    """One request of one rank.

    request_id: unique among the requests of its rank. blocks: KV blocks that it holds, shared ones too; of a waiting
    request 0. tokens: prompt and answer so far, which a waiting request needs room for as well. expected_tokens: at
    most so many are still to come, None if unknown. movable: False pins it (prefill not complete, being aborted).
    """

    request_id: str
    blocks: int
    tokens: int
    expected_tokens: int | None = None
    movable: bool = True


class RankState(NamedTuple):
    """One data-parallel rank. `waiting` is in the order of its queue. Blocks are KV blocks of the whole engine."""

    rank: int
    running: Sequence[RequestState]
    waiting: Sequence[RequestState]
    free_blocks: int
    total_blocks: int
    max_num_seqs: int


class Move(NamedTuple):
    """One request to another rank. waiting: it has no KV to send. blocks: KV blocks to send, 0 if waiting."""

    request_id: str
    source: int
    destination: int
    waiting: bool
    blocks: int


class Cost(NamedTuple):
    """What `plan` makes small, in the order of the fields: compare two as tuples."""

    graph_size: int
    stranded: int
    moves: int
    blocks: int


@dataclass(frozen=True)
class Times:
    """Optional model of what a plan gains and costs, in seconds: see `expected_seconds`.

    step: of one step, for each of the policy's graph sizes in their order. horizon_steps: for how many steps to count
    what a plan gains. pause: of the group for any plan that sends KV. block: to send one KV block; the rank that sends
    or takes most decides. cache: what a step takes more when the fullest rank's KV cache is full, in proportion; above
    0, running requests also move to level the caches where that pays.
    """

    step: tuple[float, ...]
    horizon_steps: int
    pause: float = 0.0
    block: float = 0.0
    cache: float = 0.0


@dataclass(frozen=True)
class Policy:
    """Settings, the same on every rank; ValueError where they make no sense.

    graph_sizes: captured sizes in tokens, any order. block_size: tokens of a KV block. growth_tokens: room kept for
    each request until the next plan (steps between plans times tokens a step). reserve: share of a rank's blocks that
    no plan uses. tokens_per_request: of one decode step, 1 + drafts with speculation. times: see Times; None goes by
    graph size alone.
    """

    graph_sizes: tuple[int, ...]
    block_size: int = 128
    growth_tokens: int = 0
    reserve: float = 0.0
    tokens_per_request: int = 1
    times: Times | None = None

    def __post_init__(self) -> None:
        if not self.graph_sizes or min(self.graph_sizes) < 1:
            raise ValueError(f"graph_sizes must hold one size or more, all positive: {self.graph_sizes}")
        if self.block_size < 1 or self.growth_tokens < 0 or self.tokens_per_request < 1:
            raise ValueError("block_size and tokens_per_request must be positive, growth_tokens not negative")
        if not 0 <= self.reserve < 1:
            raise ValueError(f"reserve must be at least 0 and below 1: {self.reserve}")
        if self.times and len(self.times.step) != len(self.graph_sizes):
            raise ValueError("times.step must have one time for each graph size")
        if self.times and self.times.horizon_steps < 1:
            raise ValueError("times.horizon_steps must be positive")

    def paused(self) -> "Policy":
        """While no drafts are used: a request takes one token a step."""
        return replace(self, growth_tokens=self.growth_tokens // self.tokens_per_request, tokens_per_request=1)

    def captured(self, load: int) -> int:
        """The graph that a load of so many requests needs, in tokens; UNCAPTURED above the largest, 0 for none."""
        tokens = load * self.tokens_per_request
        return min((size for size in self.graph_sizes if size >= tokens), default=UNCAPTURED) if tokens else 0

    def need(self, request: RequestState) -> int:
        """KV blocks that the request holds after growth_tokens more tokens, or at its end if that is known and near."""
        growth = self.growth_tokens
        if request.expected_tokens is not None and request.expected_tokens < growth:
            growth = request.expected_tokens
        return max(request.blocks, -(-(request.tokens + growth) // self.block_size))


def cost(states: Sequence[RankState], moves: Sequence[Move], policy: Policy) -> Cost:
    """The cost of a plan, or of none; ValueError for a move of a request that its source does not have.

    With policy.times it is what decides between plans that take the same `expected_seconds`.
    """
    after = moved(states, moves)
    return Cost(
        graph_size(after, policy),
        sum(len(stranded_at(state, policy)) for state in after),
        len(moves),
        sum(move.blocks for move in moves),
    )


def expected_seconds(states: Sequence[RankState], moves: Sequence[Move], policy: Policy) -> float:
    """What the next `horizon_steps` steps take with these moves, exchange included; 0 without policy.times."""
    times = policy.times
    if times is None:
        return 0.0
    after = moved(states, moves)
    fullest = max((1 - state.free_blocks / state.total_blocks for state in after if state.total_blocks), default=0.0)
    step = step_seconds(graph_size(after, policy), policy) + times.cache * fullest
    return times.horizon_steps * step + exchange_seconds(moves, times)


def step_seconds(size: int, policy: Policy) -> float:
    """Of a step on this graph, by policy.times; infinite without a graph, of which there is no figure."""
    assert policy.times is not None
    if not size:
        return 0.0
    return dict(zip(policy.graph_sizes, policy.times.step, strict=True)).get(size, math.inf)


def exchange_seconds(moves: Sequence[Move], times: Times) -> float:
    """How long the group pauses for the moves."""
    sent: dict[int, int] = {}
    taken: dict[int, int] = {}
    for move in moves:
        sent[move.source] = sent.get(move.source, 0) + move.blocks
        taken[move.destination] = taken.get(move.destination, 0) + move.blocks
    pause = times.pause if any(not move.waiting for move in moves) else 0.0
    return pause + times.block * max((*sent.values(), *taken.values()), default=0)


def graph_size(states: Sequence[RankState], policy: Policy) -> int:
    """The graph that decides the step time: that of the largest load, in tokens."""
    return policy.captured(max((load(state) for state in states), default=0))


def spare_blocks(state: RankState, policy: Policy) -> int:
    """Blocks that stay free when all that runs or waits there has what it needs; negative: it may be flooded."""
    missing = _missing(state.running, policy) + _missing(state.waiting, policy)
    return state.free_blocks - _reserved(state, policy) - missing


def flooded(state: RankState, policy: Policy) -> bool:
    """Whether requests wait there that do not fit."""
    return bool(stranded_at(state, policy))


def load(state: RankState) -> int:
    return min(len(state.running) + len(state.waiting), state.max_num_seqs)


def _missing(requests: Sequence[RequestState], policy: Policy) -> int:
    """Blocks that the requests need and do not hold: `Policy.need` written out, for most of a plan's time is here."""
    size, growth = policy.block_size, policy.growth_tokens
    missing = 0
    for _, blocks, tokens, expected, _ in requests:
        more = growth if expected is None or expected > growth else expected
        need = -(-(tokens + more) // size)
        if need > blocks:
            missing += need - blocks
    return missing


def _reserved(state: RankState, policy: Policy) -> int:
    return int(state.total_blocks * policy.reserve)


def moved(states: Sequence[RankState], moves: Sequence[Move]) -> list[RankState]:
    """The states after the moves."""
    if not moves:
        return list(states)
    leaving: dict[int, dict[str, Move]] = {}
    for move in moves:
        leaving.setdefault(move.source, {})[move.request_id] = move
    found: dict[Move, RequestState] = {}
    left = [_left(state, leaving[state.rank], found) if state.rank in leaving else state for state in states]
    if missing := [move for move in moves if move not in found]:
        raise ValueError(f"the sources have no such requests: {missing}")
    arriving: dict[int, list[Move]] = {}
    for move in moves:
        arriving.setdefault(move.destination, []).append(move)
    return [_joined(state, arriving[state.rank], found) if state.rank in arriving else state for state in left]


def _left(state: RankState, leaving: dict[str, Move], found: dict[Move, RequestState]) -> RankState:
    """The rank without the requests that leave, which go into `found`."""
    freed = 0
    for request in (*state.running, *state.waiting):
        if move := leaving.get(request.request_id):
            found[move] = request
            freed += request.blocks
    return state._replace(
        running=[request for request in state.running if request.request_id not in leaving],
        waiting=[request for request in state.waiting if request.request_id not in leaving],
        free_blocks=state.free_blocks + freed,
    )


def _joined(state: RankState, arriving: Sequence[Move], found: dict[Move, RequestState]) -> RankState:
    """The rank with the requests that arrive; those that wait go to the end of its queue."""
    running = [found[move] for move in arriving if not move.waiting]
    return state._replace(
        running=[*state.running, *running],
        waiting=[*state.waiting, *(found[move] for move in arriving if move.waiting)],
        free_blocks=state.free_blocks - sum(request.blocks for request in running),
    )


def stranded_at(state: RankState, policy: Policy) -> Sequence[RequestState]:
    """The waiting requests that do not fit now: as in the engine, none is let past one that has to wait."""
    if not state.waiting:
        return ()
    need = policy.need
    slots = state.max_num_seqs - len(state.running)
    blocks = state.free_blocks - _reserved(state, policy) - _missing(state.running, policy)
    for at, request in enumerate(state.waiting):
        blocks -= need(request)
        if at >= slots or blocks < 0:
            return state.waiting[at:]
    return ()
