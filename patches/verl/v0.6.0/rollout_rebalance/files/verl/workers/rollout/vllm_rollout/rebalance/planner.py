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
"""Which requests go to which data-parallel engine, so that all engines reach a smaller graph: a pure function.

Engines that share experts step together, and each is padded to the graph of the fullest one. In the tail of a rollout a
few full engines keep all others on a large graph. `plan` says which requests to move. It reads nothing but its
arguments, imports nothing but the standard library, and returns the same on every rank. Its words are in states.py.

Goals, each only among plans that are equal in those before: the smallest graph over the group, the fewest stranded
requests, the fewest moves, the fewest KV blocks sent (a waiting request has none). Limits of every plan: no request
moves twice; a rank that gives takes nothing; one that takes is not flooded by it, even if nothing had left it; what
runs is sent for a smaller graph only, not to make room for what waits.

The graph is always the smallest within these limits (unless the exact packing gives up, see PACKING_LOOKS), and the
moves of running requests are the fewest for it. Stranded requests and blocks are placed greedily, not proven least.
"""

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import NamedTuple

from .states import (
    UNCAPTURED,
    Cost,
    Move,
    Policy,
    RankState,
    RequestState,
    Times,
    cost,
    expected_seconds,
    flooded,
    graph_size,
    moved,
    spare_blocks,
    stranded_at,
)

__all__ = ["UNCAPTURED", "Cost", "Move", "Policy", "RankState", "RequestState", "Times"]
__all__ += ["cost", "expected_seconds", "flooded", "graph_size", "moved", "plan", "spare_blocks", "stranded_at"]

# How often the exact packing, tried when two simple ones fail, may look at a rank before it gives up: about 10 ms.
PACKING_LOOKS = 50_000
# Moves for level caches, at most this many a rank.
LEVELLING_MOVES = 4


def plan(states: Sequence[RankState], policy: Policy) -> list[Move]:
    """Moves that reach the smallest graph over the group, and relieve flooded ranks; [] when nothing is gained.

    states: all ranks of one group, in any order, the same on every rank that calls it. Returns waiting requests first,
    then by source and id. Raises ValueError for a rank given twice, an id twice on one rank, or impossible numbers.
    """
    ranks = _checked(states)
    best: list[Move] = []
    least = _measure(ranks, best, policy)
    # Level use of blocks first. A tight fit leaves large holes, which is tried when a request remains stranded.
    for level in (True, False):
        for moves in _candidates(ranks, policy, level):
            moves += _relief(moved(ranks, moves), {move.source for move in moves}, policy, level)
            moves.sort(key=lambda move: (not move.waiting, move.source, move.request_id))
            if moves and (found := _measure(ranks, moves, policy)) < least:
                best, least = moves, found
        if not best or not least[1].stranded:
            break
    return best


def _measure(ranks: Sequence[RankState], moves: Sequence[Move], policy: Policy) -> tuple[float, Cost]:
    """What `plan` makes small."""
    return expected_seconds(ranks, moves, policy), cost(ranks, moves, policy)


def _checked(states: Sequence[RankState]) -> list[RankState]:
    ranks = sorted(states, key=lambda state: state.rank)
    if len({state.rank for state in ranks}) != len(ranks):
        raise ValueError("a rank is given twice")
    for state in ranks:
        ids = {request.request_id for requests in (state.running, state.waiting) for request in requests}
        if len(ids) != len(state.running) + len(state.waiting):
            raise ValueError(f"rank {state.rank}: a request is given twice")
        if not 0 <= state.free_blocks <= state.total_blocks or state.max_num_seqs < 1:
            raise ValueError(f"rank {state.rank}: impossible numbers of blocks or max_num_seqs")
    return ranks


def _candidates(ranks: Sequence[RankState], policy: Policy, level: bool) -> Iterator[list[Move]]:
    """Moves of surplus to try: for the smallest graph that can be reached; with times for each of them and for none."""
    now = graph_size(ranks, policy)
    for size in sorted(size for size in policy.graph_sizes if size < now):
        moves = _reach(ranks, size, policy, level)
        if moves is None:
            continue
        yield moves + _levelling(ranks, moves, size, policy)
        if policy.times is None:
            return
    yield _levelling(ranks, (), now, policy)


def _reach(ranks: Sequence[RankState], size: int, policy: Policy, level: bool) -> list[Move] | None:
    """The fewest moves after which no rank needs more than this graph; None if there are none within the limits."""
    limit = size // policy.tokens_per_request
    surplus = {state.rank: len(state.running) + len(state.waiting) - limit for state in ranks}
    giving = [state for state in ranks if surplus[state.rank] > 0 and limit < state.max_num_seqs]
    room = sum(max(0, min(limit, state.max_num_seqs) - limit - surplus[state.rank]) for state in ranks)
    if sum(surplus[state.rank] for state in giving) > room:
        return None
    bins = _bins(ranks, limit, policy)
    for choice in (_cheapest, _smallest):
        items: list[_Item] = []
        for state in giving:
            chosen = choice(state, surplus[state.rank], policy)
            if chosen is None:
                return None
            items += chosen
        moves = _packed(items, bins, level)
        if moves is not None:
            return moves
    return None


class _Item(NamedTuple):
    """A request that is to leave; `need` is what it takes of a destination's spare blocks."""

    need: int
    source: int
    request_id: str
    waiting: bool
    blocks: int


class _Bin(NamedTuple):
    """What a destination can take."""

    rank: int
    slots: int
    blocks: int


def _filled(one: _Bin, need: int) -> _Bin:
    return _Bin(one.rank, one.slots - 1, one.blocks - need)


def _bins(ranks: Sequence[RankState], limit: int, policy: Policy) -> list[_Bin]:
    """The ranks below the limit of requests that have room for all they hold and wait for."""
    bins = []
    for state in ranks:
        slots = min(limit, state.max_num_seqs) - len(state.running) - len(state.waiting)
        if slots > 0 and (blocks := spare_blocks(state, policy)) > 0:
            bins.append(_Bin(state.rank, slots, blocks))
    return bins


def _cheapest(state: RankState, number: int, policy: Policy) -> list[_Item] | None:
    """The requests whose moves send fewest blocks: what waits, stranded ones and small ones first, then what runs."""
    first = {request.request_id for request in stranded_at(state, policy)}
    # The last in the queue first: the sort keeps this order where the rest is equal.
    waiting = [one for one in reversed(state.waiting) if one.movable]
    waiting.sort(key=lambda one: (one.request_id not in first, policy.need(one)))
    chosen = [_item(one, state.rank, True, policy) for one in waiting[:number]]
    if len(chosen) < number:
        running = sorted((one for one in state.running if one.movable), key=itemgetter(1, 0))
        chosen += [_item(one, state.rank, False, policy) for one in running[: number - len(chosen)]]
    return chosen if len(chosen) == number else None


def _smallest(state: RankState, number: int, policy: Policy) -> list[_Item] | None:
    """The requests with least need: if any so many requests of this rank fit elsewhere, then these do."""
    items = [_item(one, state.rank, True, policy) for one in state.waiting if one.movable]
    items += [_item(one, state.rank, False, policy) for one in state.running if one.movable]
    items.sort(key=lambda item: (item.need, item.blocks, item.request_id))
    return items[:number] if len(items) >= number else None


def _item(request: RequestState, rank: int, waiting: bool, policy: Policy) -> _Item:
    return _Item(policy.need(request), rank, request.request_id, waiting, 0 if waiting else request.blocks)


def _packed(items: Sequence[_Item], bins: Sequence[_Bin], level: bool) -> list[Move] | None:
    """A destination for every item, or None. Large items first; level use of blocks, else a tight fit, else all."""
    if sum(item.need for item in items) > sum(one.blocks for one in bins):
        return None
    items = sorted(items, key=lambda item: (-item.need, item.source, item.request_id))
    places = _greedy(items, bins, level) or _greedy(items, bins, not level) or _exact(items, bins)
    if places is None:
        return None
    return [_move(item, rank) for item, rank in zip(items, places, strict=True)]


def _move(item: _Item, destination: int) -> Move:
    return Move(item.request_id, item.source, destination, item.waiting, item.blocks)


class _Room:
    """The bins as they fill up."""

    def __init__(self, bins: Sequence[_Bin], level: bool) -> None:
        """level: take the bin with most blocks left, or else the one with fewest that suffice; then the lowest rank."""
        self._level = level
        self._bins = [(-one.blocks, one.rank, one.slots) for one in bins if one.slots]
        heapify(self._bins)

    def take(self, need: int) -> int | None:
        """Puts an item into a bin and returns its rank; None if it fits into none."""
        if not self._bins or -self._bins[0][0] < need:
            return None
        if self._level:
            blocks, rank, slots = heappop(self._bins)
        else:
            found = max((one for one in self._bins if -one[0] >= need), key=lambda one: (one[0], -one[1]))
            self._bins.remove(found)
            heapify(self._bins)
            blocks, rank, slots = found
        if slots > 1:
            heappush(self._bins, (blocks + need, rank, slots - 1))
        return rank


def _greedy(items: Sequence[_Item], bins: Sequence[_Bin], level: bool) -> list[int] | None:
    """A bin for each item in their order; None if one has no bin."""
    room = _Room(bins, level)
    places = [room.take(item.need) for item in items]
    return None if None in places else [rank for rank in places if rank is not None]


def _exact(items: Sequence[_Item], bins: Sequence[_Bin]) -> list[int] | None:
    """Depth-first search over all places, given up after PACKING_LOOKS; bins that are alike are tried once."""
    left = list(bins)
    places: list[int] = []
    looks = PACKING_LOOKS

    def search(at: int) -> bool:
        nonlocal looks
        if at == len(items):
            return True
        tried = set()
        for index, one in enumerate(left):
            looks -= 1
            if looks < 0:
                return False
            if not one.slots or one.blocks < items[at].need or one[1:] in tried:
                continue
            tried.add(one[1:])
            left[index] = _filled(one, items[at].need)
            places.append(one.rank)
            if search(at + 1):
                return True
            places.pop()
            left[index] = one
        return False

    return places if len(items) <= 200 and search(0) else None


def _relief(ranks: Sequence[RankState], givers: set[int], policy: Policy, level: bool) -> list[Move]:
    """Stranded requests to ranks that have room and give nothing, the rank with most of them first.

    The graph stays as it is.
    """
    flooded_ranks = [(state, stranded) for state in ranks if (stranded := stranded_at(state, policy))]
    if not flooded_ranks:
        return []
    takers = [state for state in ranks if state.rank not in givers]
    bins = _bins(takers, graph_size(ranks, policy) // policy.tokens_per_request, policy)
    if not bins:
        return []
    room = _Room(bins, level)
    moves = []
    for state, stranded in sorted(flooded_ranks, key=lambda one: (-len(one[1]), one[0].rank)):
        waiting = [_item(one, state.rank, True, policy) for one in reversed(stranded) if one.movable]
        for item in sorted(waiting, key=lambda one: one.need):
            place = room.take(item.need)
            if place is None:
                break
            moves.append(_move(item, place))
    return moves


def _levelling(ranks: Sequence[RankState], moves: Sequence[Move], size: int, policy: Policy) -> list[Move]:
    """Moves beyond `moves` from the fullest cache to the emptiest, as many as pay; none unless times.cache is given.

    The graph stays as it is, and who gives and takes in `moves` does nothing else.
    """
    times = policy.times
    if times is None or not times.cache:
        return []
    after = {state.rank: state for state in moved(ranks, moves)}
    limit = size // policy.tokens_per_request
    caches = _Caches(after, {one.rank: one for one in _bins(list(after.values()), limit, policy)}, policy)
    caches.note(moves)
    made: list[Move] = []
    paying, least = 0, caches.seconds(times, any(not move.waiting for move in moves))
    for _ in range(LEVELLING_MOVES * len(after)):
        move = caches.next_move()
        if move is None:
            break
        made.append(move)
        caches.note([move])
        if (seconds := caches.seconds(times, True)) < least:
            paying, least = len(made), seconds
    return made[:paying]


class _Caches:
    """What each rank's cache holds while requests go from the fullest to the emptiest."""

    def __init__(self, ranks: dict[int, RankState], bins: dict[int, _Bin], policy: Policy) -> None:
        self._ranks = ranks
        self._bins = bins
        self._policy = policy
        self._used = {rank: state.total_blocks - state.free_blocks for rank, state in ranks.items()}
        self._movable: dict[int, list[_Item]] = {}
        self._sent: dict[int, int] = {}
        self._taken: dict[int, int] = {}
        self._most = 0

    def note(self, moves: Sequence[Move]) -> None:
        """Counts what is sent and taken: who does one does not do the other."""
        for move in moves:
            self._sent[move.source] = self._sent.get(move.source, 0) + move.blocks
            self._taken[move.destination] = self._taken.get(move.destination, 0) + move.blocks
            self._most = max(self._most, self._sent[move.source], self._taken[move.destination])

    def seconds(self, times: Times, sends: bool) -> float:
        """What caches and exchange cost within the horizon."""
        fullest = max(used / max(1, self._ranks[rank].total_blocks) for rank, used in self._used.items())
        return times.horizon_steps * times.cache * fullest + times.pause * sends + times.block * self._most

    def next_move(self) -> Move | None:
        """The largest request that leaves its destination no fuller than its source; None if there is none."""
        source = max(self._used, key=lambda rank: (self._used[rank] / max(1, self._ranks[rank].total_blocks), -rank))
        open_bins = [
            one for one in self._bins.values() if one.slots and one.rank not in self._sent and one.rank != source
        ]
        if source in self._taken or not open_bins:
            return None
        taker = min(open_bins, key=lambda one: (self._used[one.rank], one.rank))
        if source not in self._movable:
            running = [one for one in self._ranks[source].running if one.movable]
            self._movable[source] = [_item(one, source, False, self._policy) for one in running]
        difference = self._used[source] - self._used[taker.rank]
        fitting = [one for one in self._movable[source] if one.need <= taker.blocks and 2 * one.blocks <= difference]
        item = max(fitting, key=lambda one: (one.blocks, one.request_id), default=None)
        if item is None:
            return None
        self._movable[source].remove(item)
        self._used[source] -= item.blocks
        self._used[taker.rank] += item.blocks
        self._bins[taker.rank] = _filled(taker, item.need)
        return _move(item, taker.rank)
