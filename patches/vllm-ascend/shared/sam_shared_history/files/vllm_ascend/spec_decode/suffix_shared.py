# SPDX-License-Identifier: Apache-2.0
"""One history of ended requests for all that run: what others have generated, beside a request's own automaton.

It is a pool of suffix automata of its own (see `suffix_automaton`), with a memory cap of its own: one automaton for each
LoRA adapter and generation. An automaton cannot forget, so there are two generations: the present one, to which ended
requests are added, and the one before, which only serves. `weights_updated` makes the present one the one before and
drops that; it goes as well when there is no room for an ended request, and where that does not help the request is
left out.

A running request is not added. It has a *place* in each generation's automaton, the longest end of its tokens that
occurs there, and takes it on by the tokens that it newly got, O(1) amortised each. Drafts are of the generation whose
match is longest, and longer than that in the request's own automaton: of two as long its own history says more.
Followed is the continuation that was taken most often, where the automaton of a request follows the latest.

Imported only with additional_config's sam_shared_history. Needs numpy and numba.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vllm_ascend.spec_decode.suffix_automaton import PAGE_BYTES, SuffixAutomatonPool
from vllm_ascend.spec_decode.suffix_automaton_kernels import (
    CHILD,
    EDGE_TOKEN,
    EDGES,
    LAST,
    LATEST,
    LENGTH,
    LINK,
    LOST,
    ROOT,
    STATE,
    TARGET,
    TOKEN,
    TREE,
    compiled,
    extend,
    lookup,
    match,
    new_root,
    release,
)

WINDOW = 64  # tokens at the end of a request that are looked for first; what is longer its own automaton knows
# Bytes a token for which room is asked before a request is added: the most that an automaton takes (2 states and 2 edges)
# and two pages begun. One state can be split into many edges, so that room can end nevertheless; see `add`.
TOKEN_BYTES = 72
COUNTED = 16  # states of a token, from the longest on, that count it: a repeated token would have one for each time
VISITED = 32  # edges of a state that are compared, the older ones first
NO_ADAPTER, NOT_SHARED = 0, -1


@compiled
def learn(memory, pages, tree, tokens, stack, counts):
    """Adds a history to the automaton and counts how often each state was met; False when no page is free."""
    root = tree[ROOT] if tree[ROOT] else new_root(memory, pages, tree)
    last = root
    for token in tokens:
        if last == 0:
            break
        state, known = last, lookup(memory, last, token)
        new = known == 0
        while known == 0 and memory[state + LENGTH]:
            state = memory[state + LINK]
            known = lookup(memory, state, token)
        last = extend(memory, pages, tree, last, token, stack, 1)
        if last == 0:
            break
        if known and memory[known + LENGTH] != memory[state + LENGTH] + 1:
            counts[memory[known + LINK] // STATE] = counts[known // STATE]  # has been split off
        if new:
            counts[last // STATE] = 0
        state, steps = last, 0
        while state != root and steps < COUNTED:
            counts[state // STATE] += 1
            state = memory[state + LINK]
            steps += 1
    if last == 0:
        release(pages, tree)
        tree[LOST] = 1
    return last != 0


@compiled
def follow(memory, roots, places, known, slots, token_ids, rows, lengths, best):
    """Takes the places on to the ends of the histories, and writes into `best` what is longer than what is there.

    `roots` [n]: of each history's automaton, 0 for none. `places` [slots, 2]: state and length of the match, state 0 for
    not known. `known` [slots]: to how many tokens the place belongs. `best` [n, 2]: state and length of a match that was
    followed by a token.
    """
    for i in range(len(slots)):
        root = roots[i]
        if root == 0:
            continue
        place = places[slots[i]]
        state, length, first = place[0], place[1], known[slots[i]]
        if state == 0 or first > lengths[i]:
            state, length, first = root, 0, max(0, lengths[i] - WINDOW)
        for token in token_ids[rows[i], first : lengths[i]]:
            target = lookup(memory, state, token)
            while target == 0 and memory[state + LENGTH]:  # up to the root
                state = memory[state + LINK]
                length = memory[state + LENGTH]
                target = lookup(memory, state, token)
            if target:
                state = target
                length += 1
        place[0] = state
        place[1] = length
        followed = match(memory, state)
        if followed != state:
            length = memory[followed + LENGTH]
        if followed and length > best[i, 1]:
            best[i, 0] = followed
            best[i, 1] = length


@compiled
def own_matches(memory, trees, states, slots, best):
    """Writes into `best` the lengths of the matches in the requests' own automata, and no state."""
    for i in range(len(slots)):
        slot = states[slots[i]]
        best[i, 0] = 0
        best[i, 1] = 0 if trees[slot[TREE], LOST] else memory[match(memory, slot[LAST]) + LENGTH]


@compiled
def most_taken(memory, counts, state, stack):
    """The token that followed most often, and the state behind it; the latest of those that did so as often."""
    token, target = memory[state + TOKEN], memory[state + LATEST]
    stack[0, 0] = state + EDGES
    height, visited = 1, 0
    while height and visited < VISITED:
        height -= 1
        edge = memory[stack[height, 0]]
        if edge == 0:
            continue
        visited += 1
        if counts[memory[edge + TARGET] // STATE] > counts[target // STATE]:
            token, target = memory[edge + EDGE_TOKEN], memory[edge + TARGET]
        for side in range(2):
            stack[height, 0] = edge + CHILD + side
            height += 1
    return token, target


@compiled
def draft(memory, counts, best, limits, settings, stack, drafts, number):
    """Overwrites the drafts of those histories for which `best` has a state."""
    shortest, per_match = settings
    for i in range(len(best)):
        state, length = best[i]
        if state == 0 or length < shortest:
            continue
        most = min(limits[i], drafts.shape[1])
        if per_match:
            most = min(most, per_match * length)
        number[i] = 0
        while number[i] < most and memory[state + LENGTH] >= shortest:
            token, target = most_taken(memory, counts, state, stack)
            drafts[i, number[i]] = token
            number[i] += 1
            state = match(memory, target)


class SharedHistory:
    """What ended requests have generated. Not thread-safe; the same calls give the same drafts on every rank.

    Args:
        own: the pool of the requests' own automata, whose slots and settings are taken.
        max_bytes: what both generations may take, counts included.
        updates: a generation ends with so many updates of the weights.

    Raises:
        ValueError: max_bytes or updates is out of its range.
    """

    def __init__(self, own: SuffixAutomatonPool, max_bytes: int, updates: int):
        if updates < 1:
            raise ValueError(f"updates ({updates}) must be at least 1")
        self._own, self._updates = own, updates
        room = max_bytes * STATE // (STATE + 1)  # a count for each place of a state
        self._pool = SuffixAutomatonPool(own.num_draft_tokens, max_bytes=room, num_slots=4)
        self._counts = np.empty(len(self._pool._memory) // STATE, np.int32)
        self._room = room // PAGE_BYTES * PAGE_BYTES
        # By adapter the slot that keeps an automaton: of the present generation, and of the one before.
        self._generations: list[dict[int, int]] = [{}, {}]
        self._age, self._is_newer = 0, False
        self._adapters = np.zeros(0, np.int64)  # of the slots of `own`
        self._places = np.zeros((2, 0, 2), np.int32)
        self.num_left_out = 0  # ended requests for which there was no room

    def open(self, slot: int, adapter: int = NO_ADAPTER) -> None:
        """Begins to follow the request that has this slot of `own`; with NOT_SHARED it gets no drafts from here."""
        if slot >= len(self._adapters):
            more = len(self._own._slots) - len(self._adapters)
            self._adapters = np.pad(self._adapters, (0, more))
            self._places = np.pad(self._places, ((0, 0), (0, more), (0, 0)))
        self._adapters[slot] = adapter
        self._places[:, slot] = 0

    def add(self, token_ids: Sequence[int], adapter: int = NO_ADAPTER) -> bool:
        """Adds an ended request to the present generation; returns False when there is no room for it."""
        tokens = np.array(token_ids, np.int32)
        needed = TOKEN_BYTES * len(tokens) + 2 * PAGE_BYTES
        if needed > self._room - self._pool.used_bytes():
            self._drop(1)
        if needed > self._room - self._pool.used_bytes():
            self.num_left_out += 1
            return False
        present, pool = self._generations[0], self._pool
        if adapter not in present:
            present[adapter] = pool.open()
        tree = pool._trees[pool._slots[present[adapter], TREE]]
        self._places[0] = 0  # now longer ends of the histories can occur, and states are split
        self._is_newer = learn(pool._memory, pool._pages, tree, tokens, pool._stack, self._counts)
        if not self._is_newer:  # given up, with all that was in it
            pool.close(present.pop(adapter))
            self._places[:] = 0
            self.num_left_out += 1
        return self._is_newer

    def weights_updated(self) -> None:
        """Tells that the next requests are of other weights. Counts once, however often it is told between two of them."""
        if not self._is_newer:
            return
        self._is_newer = False
        self._age += 1
        if self._age == self._updates:
            self._age = 0
            self._drop(1)
            self._generations.reverse()

    def improve(self, slots, token_ids, rows, lengths, limits, known, found) -> None:
        """Overwrites drafts of what `own`'s propose `found`, for the same arguments, where the match here is longer.

        `known` [slots] are the lengths at the call before, 0 for a new request.
        """
        own, pool = self._own, self._pool
        best = np.empty((len(slots), 2), np.int32)
        own_matches(own._memory, own._trees, own._slots, slots, best)
        for automata, places in zip(self._generations, self._places, strict=True):
            roots = np.zeros(len(slots), np.int32)
            for adapter, keeper in automata.items():
                roots[self._adapters[slots] == adapter] = pool._trees[pool._slots[keeper, TREE], ROOT]
            follow(pool._memory, roots, places, known, slots, token_ids, rows, lengths, best)
        draft(pool._memory, self._counts, best, limits, own._settings, pool._stack, found[:, :-1], found[:, -1])

    def warm_up(self) -> None:
        """Compiles, or loads, what the other methods call, so that no request waits for it."""
        one, slot = np.ones(1, np.int32), self._own.open()
        self.open(slot)
        self.add([1, 2, 1, 2])
        row, known = np.array([[1, 2]], np.int32), np.zeros(slot + 1, np.int32)
        found = np.zeros((1, self._own.num_draft_tokens + 1), np.int32)
        self.improve(one * slot, row, one * 0, one * 2, one, known, found)
        self._own.close(slot)
        self._drop(0)
        self._is_newer = False

    def used_bytes(self) -> int:
        """Bytes of the pages that both generations take, and of their counts."""
        return self._pool.used_bytes() * (STATE + 1) // STATE

    def _drop(self, generation: int) -> None:
        automata = self._generations[generation]
        for keeper in automata.values():
            self._pool.close(keeper)
        automata.clear()
        self._places[:] = 0
