# SPDX-License-Identifier: Apache-2.0
"""The compiled half of `suffix_automaton`: automata in one int32 array, by offsets.

`memory` holds states and edges in pages, `pages` the list of free pages and the list of each automaton's. A function
that needs a page and finds none returns 0 or False at once, and `append` then gives the whole automaton up, so that
what it left half done is never read.
"""

import os

from numba import config, njit

# Fields of a state: the length of its longest string; the state of that string's longest suffix that also ends
# elsewhere; the tree of edges; the edge that was taken last, as the state that it leads to and its token. An offset of
# 0 is none: page 0 is never used.
LENGTH, LINK, EDGES, LATEST, TOKEN = range(5)
STATE = 5
NO_TOKEN = -1
# Fields of an edge in a state's tree. The children are the edges whose token has the bit 0 or 1 at this level. The edge
# taken last is in the tree only if it was not the last one meanwhile: most states have one edge, and no tree.
EDGE_TOKEN, TARGET, CHILD = range(3)
EDGE = 4
# The root has an edge for every token that occurs: one tree for each value of the lowest bits, just behind it.
ROOT_BITS = 9
ROOT_MASK = (1 << ROOT_BITS) - 1
ROOT_TREES = 515  # room for 2^9, in whole states
PAGE = 2560  # int32: 512 states or 640 edges
# Rows. Of an automaton: its root, the free rest of its last page of states and of edges, its list of pages, how many
# they are, whether it was given up. Of a slot: its automaton, the state of its history, how many tokens that has.
ROOT, NEXT_STATE, END_STATE, NEXT_EDGE, END_EDGE, PAGES, TAKEN, LOST = range(8)
TREE, LAST, KNOWN = range(3)
# How many suffixes that have an edge already learn that it was taken again. With two, as many drafts are accepted as
# when the latest occurrence is searched for, with none fewer. All would cost a history of one token its length a step.
RELEARNT = 2
# How far `fetch` reads ahead: with 256 histories of 32 K tokens a step took 0.7 of the time that it took without.
FETCHED_STATES = 4
FETCHED_LEVELS = 3
DEEPEST = 40  # levels of a tree of edges, with room to spare: tokens have 32 bits
# Beside what vllm itself keeps of compilations, and not beside this file: a source tree is not ours to write into.
CACHE = os.path.join(os.environ.get("VLLM_CACHE_ROOT") or os.path.expanduser("~/.cache/vllm"), "suffix_automaton")


def compiled(function):
    """numba's njit, with a cache that all workers of a machine share: some 5 s at the first start, 0.4 s at any other.

    Without numba's counts of references, which every slice of an array would raise and lower: a third of a step's time.
    So nothing compiled here makes an array; the caller's arguments live as long as the call.

    numba tells entries apart by this file's path, size and time, by processor and by its own version. Where the folder
    cannot be written each worker compiles for itself.
    """
    try:
        os.makedirs(CACHE, exist_ok=True)
    except OSError:
        return njit(_nrt=False)(function)
    if not os.access(CACHE, os.W_OK):
        return njit(_nrt=False)(function)
    others, config.CACHE_DIR = config.CACHE_DIR, CACHE
    try:
        return njit(_nrt=False, cache=True)(function)
    finally:
        config.CACHE_DIR = others


@compiled
def take_page(pages, tree):
    """The offset of a page that now belongs to the automaton; 0 when none is free."""
    page = pages[0]
    if page:
        pages[0] = pages[page]
        pages[page] = tree[PAGES]
        tree[PAGES] = page
        tree[TAKEN] += 1
    return page * PAGE


@compiled
def release(pages, tree):
    """Gives all pages of the automaton back."""
    page = tree[PAGES]
    while page:
        following = pages[page]
        pages[page] = pages[0]
        pages[0] = page
        page = following
    tree[:] = 0


@compiled
def new_state(memory, pages, tree, length):
    at = tree[NEXT_STATE]
    if at == tree[END_STATE]:
        at = take_page(pages, tree)
        if at == 0:
            return 0
        tree[END_STATE] = at + PAGE
    tree[NEXT_STATE] = at + STATE
    memory[at + LENGTH] = length
    memory[at + LINK] = 0
    memory[at + EDGES] = 0
    memory[at + LATEST] = 0
    memory[at + TOKEN] = NO_TOKEN
    return at


@compiled
def new_root(memory, pages, tree):
    root = new_state(memory, pages, tree, 0)
    if root:
        memory[root + STATE : root + STATE + ROOT_TREES] = 0
        tree[NEXT_STATE] += ROOT_TREES
    tree[ROOT] = root
    return root


@compiled
def new_edge(memory, pages, tree, token, target):
    at = tree[NEXT_EDGE]
    if at == tree[END_EDGE]:
        at = take_page(pages, tree)
        if at == 0:
            return 0
        tree[END_EDGE] = at + PAGE
    tree[NEXT_EDGE] = at + EDGE
    memory[at + EDGE_TOKEN] = token
    memory[at + TARGET] = target
    memory[at + CHILD] = 0
    memory[at + CHILD + 1] = 0
    return at


@compiled
def place(memory, state, token):
    """The offset of the field that refers to the edge with this token in the state's tree, or would refer to it."""
    field = state + EDGES
    bits = token
    if memory[state + LENGTH] == 0:
        field = state + STATE + (token & ROOT_MASK)
        bits >>= ROOT_BITS
    edge = memory[field]
    while edge and memory[edge + EDGE_TOKEN] != token:
        field = edge + CHILD + (bits & 1)
        bits >>= 1
        edge = memory[field]
    return field


@compiled
def lookup(memory, state, token):
    """The state that the edge with this token leads to, 0 when there is none."""
    if memory[state + TOKEN] == token:
        return memory[state + LATEST]
    edge = memory[place(memory, state, token)]
    return memory[edge + TARGET] if edge else 0


@compiled
def learn(memory, pages, tree, state, token, target):
    """Makes this edge, new or not, the one taken last; False when no page is free."""
    former = memory[state + TOKEN]
    if former != NO_TOKEN and former != token:
        field = place(memory, state, former)
        if memory[field] == 0:
            edge = new_edge(memory, pages, tree, former, memory[state + LATEST])
            if edge == 0:
                return False
            memory[field] = edge
    memory[state + LATEST] = target
    memory[state + TOKEN] = token
    return True


@compiled
def relearn(memory, pages, tree, state, token, shortest):
    """Lets drafts from `state` and its next suffixes follow the edge that has just been taken."""
    for _ in range(RELEARNT):
        if state == 0 or memory[state + LENGTH] < shortest:
            return True
        if not learn(memory, pages, tree, state, token, lookup(memory, state, token)):
            return False
        state = memory[state + LINK]
    return True


@compiled
def redirect(memory, state, token, target):
    """Makes the edge with this token lead to `target`."""
    if memory[state + TOKEN] == token:
        memory[state + LATEST] = target
    edge = memory[place(memory, state, token)]
    if edge:
        memory[edge + TARGET] = target


@compiled
def copy_edges(memory, pages, tree, source, target, stack):
    """Gives `target` the edges of `source`; `stack` is room for two fields a level. False when no page is free."""
    memory[target + LATEST] = memory[source + LATEST]
    memory[target + TOKEN] = memory[source + TOKEN]
    stack[0, 0] = source + EDGES
    stack[0, 1] = target + EDGES
    height = 1
    while height:
        height -= 1
        edge = memory[stack[height, 0]]
        if edge == 0:
            continue
        copy = new_edge(memory, pages, tree, memory[edge + EDGE_TOKEN], memory[edge + TARGET])
        if copy == 0:
            return False
        memory[stack[height, 1]] = copy
        for side in range(2):
            stack[height, 0] = edge + CHILD + side
            stack[height, 1] = copy + CHILD + side
            height += 1
    return True


@compiled
def split(memory, pages, tree, state, token, whole, stack):
    """Splits off from `whole` the strings by which `state` and its suffixes reach it; 0 when no page is free."""
    part = new_state(memory, pages, tree, memory[state + LENGTH] + 1)
    if part == 0 or not copy_edges(memory, pages, tree, whole, part, stack):
        return 0
    memory[part + LINK] = memory[whole + LINK]
    memory[whole + LINK] = part
    while state and lookup(memory, state, token) == whole:
        redirect(memory, state, token, part)
        state = memory[state + LINK]
    return part


@compiled
def go(memory, pages, tree, state, token, known, stack, shortest):
    """The state of `state`'s longest string and the token, whose edge leads to `known`; 0 when no page is free."""
    if memory[known + LENGTH] != memory[state + LENGTH] + 1:
        known = split(memory, pages, tree, state, token, known, stack)
    if known == 0 or not relearn(memory, pages, tree, state, token, shortest):
        return 0
    return known


@compiled
def extend(memory, pages, tree, last, token, stack, shortest):
    """The state of the history `last` with one token more; 0 when no page is free."""
    known = lookup(memory, last, token)
    if known:  # only in a group: another request has been here
        return go(memory, pages, tree, last, token, known, stack, shortest)
    here = new_state(memory, pages, tree, memory[last + LENGTH] + 1)
    if here == 0:
        return 0
    state = last
    while state and known == 0:
        if not learn(memory, pages, tree, state, token, here):
            return 0
        state = memory[state + LINK]
        known = lookup(memory, state, token) if state else 0
    if known:
        known = go(memory, pages, tree, state, token, known, stack, shortest)
        if known == 0:
            return 0
    memory[here + LINK] = known if known else tree[ROOT]
    return here


@compiled
def append(memory, pages, tree, slot, tokens, stack, shortest):
    """Extends by all tokens; gives the automaton up and returns False when no page is free."""
    last = slot[LAST]
    if last == 0:
        last = tree[ROOT] if tree[ROOT] else new_root(memory, pages, tree)
    for token in tokens:
        if last:
            last = extend(memory, pages, tree, last, token, stack, shortest)
    slot[LAST] = last
    slot[KNOWN] += len(tokens)
    if last == 0:
        release(pages, tree)
        tree[LOST] = 1
    return last != 0


@compiled
def is_history(memory, root, last, tokens):
    """Whether the state `last` stands for exactly these tokens."""
    state = root
    for token in tokens:
        state = lookup(memory, state, token)
        if state == 0:
            return False
    return state == last


@compiled
def match(memory, last):
    """The state of the longest suffix that was followed by a token; 0 when there is none, not even the empty one."""
    while last and memory[last + LATEST] == 0:
        last = memory[last + LINK]
    return last


@compiled
def fetch(memory, trees, states, slots, token_ids, rows, lengths, at):
    """Reads what the next token of each history will need, one read of every history at a time.

    The reads of one history wait for each other, and for memory, because those of all others came in between; side by
    side memory answers many at once. It changes nothing: what it returns has no meaning and only keeps the reads from
    being optimised away. An offset of 0 leads to page 0, which is all zeros. `at` is room for 3 int32 a slot.
    """
    seen = 0
    for i in range(len(slots)):
        slot = states[slots[i]]
        tree = trees[slot[TREE]]
        token = token_ids[rows[i], max(0, min(slot[KNOWN], lengths[i] - 1))]
        at[i, 0] = 0 if tree[LOST] else memory[slot[LAST] + LINK]
        at[i, 1] = tree[ROOT] + STATE + (token & ROOT_MASK)
        at[i, 2] = token
        seen += memory[tree[NEXT_STATE] - 1] + memory[tree[NEXT_EDGE] - 1]
    for i in range(len(slots)):
        at[i, 1] = memory[at[i, 1]]
    fetch_tree(memory, at, ROOT_BITS)
    for _ in range(FETCHED_STATES):
        for i in range(len(slots)):
            state = at[i, 0]
            at[i, 0] = memory[state + LINK]
            at[i, 1] = memory[state + EDGES]
            seen += memory[memory[state + LATEST] + LINK]
        fetch_tree(memory, at, 0)
    return seen + at[0, 1]


@compiled
def fetch_tree(memory, at, first_bit):
    """Goes down the first levels of trees of edges: from the edge in column 1, for the token in column 2."""
    for bit in range(first_bit, first_bit + FETCHED_LEVELS):
        for i in range(len(at)):
            at[i, 1] = memory[at[i, 1] + CHILD + (at[i, 2] >> bit & 1)]


@compiled
def draft(memory, limits, settings, drafts, counts, at):
    """Writes drafts and how many, from the histories' states in column 0 of `at`; for state 0 nothing.

    One draft of every request at a time, for the reason that `fetch` has. Where what is followed ends, its longest
    suffix that goes on is followed.
    """
    shortest, per_match = settings
    for i in range(len(at)):
        state = match(memory, at[i, 0])
        most = min(limits[i], drafts.shape[1])
        if per_match:
            most = min(most, per_match * memory[state + LENGTH])
        at[i, 0] = state
        at[i, 1] = most
    for j in range(drafts.shape[1]):
        for i in range(len(at)):
            state = at[i, 0]
            if j < at[i, 1] and memory[state + LENGTH] >= shortest:
                drafts[i, j] = memory[state + TOKEN]
                counts[i] = j + 1
                at[i, 0] = match(memory, memory[state + LATEST])
            else:
                at[i, 1] = 0


@compiled
def propose(memory, pages, trees, states, slots, token_ids, rows, lengths, limits, settings, stack, at, found):
    """Does what `SuffixAutomatonPool.propose` says; a count is -1 where the history is shorter than the slot's.

    `settings` are the shortest match and the drafts a token of the match, `at` is room, int32 [n, 3]. Returns how many
    automata were given up, and how many counts are -1.
    """
    lost, shorter = 0, 0
    drafts, counts = found[:, :-1], found[:, -1]
    if len(slots):
        at[0, 0] = fetch(memory, trees, states, slots, token_ids, rows, lengths, at)
    for i in range(len(slots)):
        slot = states[slots[i]]
        tree = trees[slot[TREE]]
        counts[i] = 0
        at[i, 0] = 0
        if tree[LOST]:
            continue
        if lengths[i] < slot[KNOWN]:
            counts[i] = -1
            shorter += 1
        elif append(memory, pages, tree, slot, token_ids[rows[i], slot[KNOWN] : lengths[i]], stack, settings[0]):
            at[i, 0] = slot[LAST]
        else:
            lost += 1
    for i in range(len(slots)):
        if trees[states[slots[i], TREE], LOST]:
            at[i, 0] = 0  # given up for another member of its group, later in this very call
    draft(memory, limits, settings, drafts, counts, at)
    return lost, shorter


@compiled
def taken_back(slots, token_ids, rows, lengths, known, tails, found):
    """Writes which histories no longer have the last tokens that their slot knows; returns how many.

    `known` and `tails` are of each slot: how many tokens it knows, and the last of them, the latest first.
    """
    count = 0
    for i in range(len(slots)):
        length, tail, row = known[slots[i]], tails[slots[i]], token_ids[rows[i]]
        other = length > lengths[i]
        for j in range(min(length, len(tail))):
            other = other or row[length - 1 - j] != tail[j]
        found[i] = other
        count += other
    return count


@compiled
def remember(slots, token_ids, rows, lengths, known, tails):
    """Sets what `taken_back` compares with."""
    for i in range(len(slots)):
        known[slots[i]] = lengths[i]
        for j in range(min(lengths[i], tails.shape[1])):
            tails[slots[i], j] = token_ids[rows[i], lengths[i] - 1 - j]
