# SPDX-License-Identifier: Apache-2.0
"""Suffix automata of requests' token histories: the longest suffix that occurred before, and what followed it.

A history is a suffix automaton (Blumer et al., 1985) that is extended by the tokens which the request newly got, O(1)
amortised a token. The suffix link of the state that stands for the whole history is its longest suffix that occurred
before; drafts follow the edges from there. No model is run and nothing is searched. An edge is followed that was taken
last: on code and prose more drafts were accepted so than with the first or the most frequent continuation.

Memory. All automata live in one int32 array that is cut into pages; a state or an edge is known by its offset in it. A
state holds the edge taken last itself. If it has others, they form a tree over the bits of their tokens (one bit a
level, the lowest first): a lookup takes at most 32 steps however many edges there are, and nothing is ever rehashed or
moved. n tokens make at most 2n states of 20 bytes, and 2n edges in trees of 16 bytes, but hardly both: 40 to 42 bytes a
token on code and prose of 8,000 tokens and more, 59 on random bits; below that the last page weighs, a page is 10 KiB.

The array has the configured number of bytes. The system backs a piece of it when that is first written, and pages of
closed requests are used again before new ones. A history for which no page is free loses its automaton: that request
gets no drafts any more, while others go on.

A group (Seer, arXiv 2511.14617) is one automaton over the histories of several requests, such as the samples of a
prompt: each keeps its own place in it, and what one has generated serves all. What they have in common is stored once.

This module and `suffix_automaton_kernels` need numpy and numba, and are imported only where the method is `sam`.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from vllm_ascend.spec_decode.suffix_automaton_kernels import (
    DEEPEST,
    KNOWN,
    LAST,
    LENGTH,
    LOST,
    PAGE,
    ROOT,
    TAKEN,
    TREE,
    append,
    is_history,
    match,
    propose,
    release,
)

PAGE_BYTES = 4 * PAGE
LIMIT_BYTES = 1 << 33  # offsets are int32


def as_lists(found: np.ndarray) -> list[list[int]]:
    """The drafts that a pool's `propose` returned, one list a request."""
    rows = found.tolist()
    for row in rows:
        del row[row.pop() :]
    return rows


class SuffixAutomatonPool:
    """The automata of all running requests.

    A *slot* is an int that stands for one request's place in one automaton. Token ids are 0 or more. Not thread-safe.

    Args:
        num_draft_tokens: the most drafts a request and call, at least 1.
        min_match_length: no drafts where the longest suffix that occurred before is shorter, at least 1 (tokens).
        max_bytes: what all automata together may take, at least one page (10 KiB), below 8 GiB.
        num_slots: slots to begin with; more are made when they are needed.
        drafts_per_match: at most so many drafts a token of the match, since short matches are wrong more often; 0 for
            no such limit. 1 is what suffix decoding does by default (its max_spec_factor).

    Raises:
        ValueError: an argument is out of its range.
    """

    def __init__(
        self,
        num_draft_tokens: int,
        min_match_length: int = 1,
        max_bytes: int = 1 << 30,
        num_slots: int = 64,
        drafts_per_match: int = 0,
    ):
        if num_draft_tokens < 1 or min_match_length < 1 or num_slots < 1 or drafts_per_match < 0:
            raise ValueError(
                f"num_draft_tokens ({num_draft_tokens}), min_match_length ({min_match_length}) and num_slots "
                f"({num_slots}) must be at least 1, drafts_per_match ({drafts_per_match}) at least 0"
            )
        num_pages = max_bytes // PAGE_BYTES
        if num_pages < 1 or max_bytes >= LIMIT_BYTES - PAGE_BYTES:
            raise ValueError(f"max_bytes ({max_bytes}) must be at least {PAGE_BYTES} and below 8 GiB")
        self.num_draft_tokens = num_draft_tokens
        self.num_capped = 0  # automata given up so far because no page was free
        self._settings = (min_match_length, drafts_per_match)
        self._memory = np.empty((num_pages + 1) * PAGE, np.int32)
        self._memory[:PAGE] = 0  # page 0: what "no state" and "no edge" read as
        # Element i names the page after page i in its list; element 0 begins the list of free pages.
        self._pages = np.arange(1, num_pages + 2, dtype=np.int32)
        self._pages[num_pages] = 0
        self._stack = np.empty((DEEPEST, 2), np.int32)
        self._trees = np.zeros((num_slots, LOST + 1), np.int32)
        self._slots = np.zeros((num_slots, KNOWN + 1), np.int32)
        self._free_slots = list(range(num_slots - 1, -1, -1))
        self._free_trees = list(self._free_slots)
        self._group_of: dict[int, Hashable] = {}
        self._groups: dict[Hashable, list[int]] = {}  # its slots

    def open(self, group: Hashable | None = None) -> int:
        """A new slot with an empty history; with `group`, in the automaton that this group shares."""
        if not self._free_slots:
            self._double()
        slot = self._free_slots.pop()
        members = [] if group is None else self._groups.setdefault(group, [])
        tree = self._slots[members[0], TREE] if members else self._free_trees.pop()
        self._slots[slot] = (tree, 0, 0)
        if group is not None:
            members.append(slot)
            self._group_of[slot] = group
        return slot

    def close(self, slot: int) -> None:
        """Frees the slot, and its automaton's memory unless other members of its group are left."""
        self._free_slots.append(slot)
        group = self._group_of.pop(slot, None)
        if group is not None:
            self._groups[group].remove(slot)
            if self._groups[group]:
                return
            del self._groups[group]
        tree = int(self._slots[slot, TREE])
        release(self._pages, self._trees[tree])
        self._free_trees.append(tree)

    def forget(self, slot: int) -> None:
        """Makes the slot's history empty; in a group what it had remains for the others."""
        self.sync(slot, np.zeros(0, np.int32))

    def sync(self, slot: int, token_ids: np.ndarray) -> bool:
        """Makes the slot's history equal `token_ids` (int32, one dimension), whatever it was.

        Where the history is a beginning of `token_ids` only the difference is added. Otherwise it is built anew; in a
        group what it had remains for the others. Returns False when the request gets no drafts, for lack of memory.
        """
        row, tree = self._slots[slot], self._trees[self._slots[slot, TREE]]
        if tree[LOST]:
            return False
        tokens = np.ascontiguousarray(token_ids, np.int32)
        known = int(row[KNOWN])
        if known > len(tokens) or not is_history(self._memory, tree[ROOT], row[LAST], tokens[:known]):
            if slot not in self._group_of:
                release(self._pages, tree)
            row[LAST] = row[KNOWN] = known = 0
        kept = append(self._memory, self._pages, tree, row, tokens[known:], self._stack, self._settings[0])
        self.num_capped += not kept
        return kept

    def propose(
        self,
        slots: np.ndarray,
        token_ids: np.ndarray,
        rows: np.ndarray,
        lengths: np.ndarray,
        limits: np.ndarray,
    ) -> np.ndarray:
        """Adds what is new of each history and returns its drafts.

        Args:
            slots: int32 [n], no slot twice.
            token_ids: int32 [rows, width], such as the input batch's `token_ids_cpu`.
            rows: int32 [n], the row of `token_ids` that holds the slot's history.
            lengths: int32 [n], the length of that history: accepted tokens only. What the slot does not know yet is
                added, however many tokens; a history shorter than the known one is taken anew from the row.
            limits: int32 [n], at most so many drafts; 0 only adds.

        Returns:
            int32 [n, num_draft_tokens + 1]: of each row its drafts, what is behind them is undefined, and in its last
            place how many they are.
        """
        found = np.empty((len(slots), self.num_draft_tokens + 1), np.int32)
        if not self._propose(slots, token_ids, rows, lengths, limits, found):
            return found
        for i in np.flatnonzero(found[:, -1] < 0):
            one = slice(i, i + 1)
            self.sync(int(slots[i]), token_ids[rows[i], : lengths[i]])
            self._propose(slots[one], token_ids, rows[one], lengths[one], limits[one], found[one])
        return found

    def warm_up(self) -> None:
        """Compiles what the other methods call, so that no step of a request waits for it."""
        slot = self.open()
        one = np.ones(1, np.int32)
        self.propose(one * slot, np.array([[1, 2, 1, 2]], np.int32), one * 0, one * 4, one)
        self.sync(slot, np.array([1, 3, 1, 2], np.int32))  # as long, so that it is compared
        self.match_length(slot)
        self.close(slot)

    def known_length(self, slot: int) -> int:
        """How many tokens the slot's history has."""
        return int(self._slots[slot, KNOWN])

    def match_length(self, slot: int) -> int:
        """The length of the longest suffix of the history that was followed by a token, in it or in its group."""
        if self.is_capped(slot):
            return 0
        state = match(self._memory, self._slots[slot, LAST])
        return int(self._memory[state + LENGTH]) if state else 0

    def is_capped(self, slot: int) -> bool:
        """Whether the slot's automaton was given up for lack of memory."""
        return bool(self._trees[self._slots[slot, TREE], LOST])

    def used_bytes(self) -> int:
        """Bytes of the pages that are taken."""
        return int(self._trees[:, TAKEN].sum()) * PAGE_BYTES

    def _propose(self, slots, token_ids, rows, lengths, limits, found) -> int:
        """The compiled call; returns how many histories are shorter than their slot's."""
        arrays = (self._memory, self._pages, self._trees, self._slots, slots, token_ids, rows, lengths, limits)
        at = np.empty((len(slots), 3), np.int32)
        lost, shorter = propose(*arrays, self._settings, self._stack, at, found)
        self.num_capped += lost
        return shorter

    def _double(self) -> None:
        """Makes as many slots as there are."""
        old = len(self._slots)
        self._slots = np.concatenate([self._slots, np.zeros_like(self._slots)])
        self._trees = np.concatenate([self._trees, np.zeros_like(self._trees)])
        self._free_slots += range(2 * old - 1, old - 1, -1)
        self._free_trees += range(2 * old - 1, old - 1, -1)
