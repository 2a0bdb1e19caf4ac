"""Drafts from tables of hashed contexts: a candidate for sam_proposer's place, measured by bench_context_table.py.

For each of some orders k a request's table holds the place behind the last k tokens. The history is the key: what a
place claims is compared with it, so that an entry that is stale, or another context's, costs a look and is never
followed. Therefore nothing has to be deleted when tokens are taken back, and a full line forgets its oldest place.

Two things make its drafts as good as an automaton's:

- Update exclusion (as in PPM; Moffat, 1990): at each token only the longest known context, the next shorter one and
  those above are written. A short context then has what followed it where no longer one knew better.
- Each place remembers the place that it followed. What was followed goes on being a candidate while it is right, however
  long the match; where it fails, what it had followed in its turn is one.

A line is 16 entries, 64 bytes. The lines of a token follow from its last tokens alone: those of all new tokens of all
requests are prefetched before the first is read. A table grows by a page (linear hashing; Litwin, 1980): the page from
which the new one's contexts split is copied, and what then stands in the wrong one of the two is forgotten as it ages.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

ORDERS = (1, 2, 4, 8)  # ascending; tokens
LEADS = 3  # so many orders choose a line of their own; the others lie in the last of these
LONGEST = 256  # tokens by which two matches are compared
ENTRIES_A_TOKEN = 4
PLACE_BITS = 18  # of an entry; the others are its context's tag
PLACE = (1 << PLACE_BITS) - 1
WAYS = 16  # entries of a line
LINES = 128  # of a page
PAGE = LINES * WAYS


@intrinsic
def prefetch(typing_context, array, index):
    """LLVM's prefetch of array[index]: PREFETCHT0 on x86, PRFM on aarch64."""

    def generate(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        pointer = builder.bitcast(builder.gep(data, [args[1]]), ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [pointer, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


@njit
def locate(orders, tokens, end, pages, size, at, tags):
    """Writes the lines of the contexts that end before `end`, as offsets (0: too long), and their tags.

    `size` is the table's number of lines: of the two candidates of linear hashing the one that exists is taken.
    """
    whole = np.uint64(LINES)
    while whole < size:
        whole <<= np.uint64(1)
    h, line, o = np.uint64(0x9E3779B97F4A7C15), np.int64(0), 0
    for j in range(min(orders[-1], end)):
        h = (h ^ np.uint64(np.uint32(tokens[end - 1 - j]))) * np.uint64(0xD6E8FEB86659FD93)
        h ^= h >> np.uint64(29)
        if j + 1 == orders[o]:
            if o < LEADS:
                x = h & (whole - np.uint64(1))
                if x >= size:
                    x &= (whole >> np.uint64(1)) - np.uint64(1)
                line = np.int64(pages[x // np.uint64(LINES)]) * PAGE + np.int64(x % np.uint64(LINES)) * WAYS
            at[o] = line
            tags[o] = np.uint32(h >> np.uint64(32)) & ~np.uint32(PLACE)
            o += 1
    while o < len(orders):
        at[o] = 0
        o += 1


@njit
def look(table, line, tag):
    """A context's place, 0 for none, and the offset of its entry, without one that of the line's oldest."""
    start = np.uint64(line)
    same, oldest = np.uint32(0), np.uint32(0xFFFFFFFF)
    for way in range(WAYS):
        entry = table[start + np.uint64(way)]
        place = entry & np.uint32(PLACE)
        key = place * np.uint32(WAYS) + np.uint32(way)
        oldest = min(oldest, key)
        same = max(same, key if (entry ^ tag) == place else np.uint32(0))
    if same < WAYS:
        return np.int64(0), start + np.uint64(oldest % np.uint32(WAYS))
    return np.int64(same // np.uint32(WAYS)), start + np.uint64(same % np.uint32(WAYS))


@njit
def keep(table, at, tags, end):
    """Writes `end` for the longest known of the contexts before it, for the next shorter and for those above.

    A long context, which has no line of its own, is written only where the next shorter is known. What was there before
    replaces the lines in `at`, for the two known ones.
    """
    known, above = False, np.uint64(0)
    for o in range(len(at) - 1, -1, -1):
        if at[o] == 0:
            continue
        place, entry = look(table, at[o], tags[o])
        at[o] = place
        if known:
            table[entry] = tags[o] | np.uint32(end)
            at[:o] = 0
            return
        if place and above:
            table[above] = tags[o + 1] | np.uint32(end)
        known, above = place > 0, entry if o >= LEADS else np.uint64(0)
        if known or o < LEADS:
            table[entry] = tags[o] | np.uint32(end)


@njit
def longest(places):
    """The place of the longest known context, 0 for none."""
    for o in range(len(places) - 1, -1, -1):
        if places[o]:
            return places[o]
    return np.int64(0)


@njit
def carry(tokens, followed, end):
    """The place that the last token's followed place leads to, or what that had followed; 0 where both were wrong."""
    for place in (followed[end - 1], followed[followed[end - 1]]):
        if 0 < place < end - 1 and tokens[place] == tokens[end - 1]:
            return np.int64(place + 1)
    return np.int64(0)


@njit
def grow(table, free, pages, sizes, slot, needed):
    """Adds pages until the table has `needed` lines, or no page is free. `free` is a stack below its height."""
    while sizes[slot] < needed and free[0] and sizes[slot] // LINES < pages.shape[1]:
        page, size = free[free[0]], sizes[slot]
        free[0] -= 1
        if size:
            half = LINES
            while 2 * half <= size:
                half *= 2
            source = np.int64(pages[slot, (size - half) // LINES]) * PAGE
            table[page * PAGE : (page + 1) * PAGE] = table[source : source + PAGE]
        else:
            table[page * PAGE : (page + 1) * PAGE] = 0
        pages[slot, size // LINES] = page
        sizes[slot] = size + LINES


@njit
def learn(table, orders, tokens, followed, first, last, pages, size, at, tags):
    """Keeps the places first + 1 to last, as many at a time as `at` has room for."""
    while first < last:
        count = min(len(at), last - first)
        for k in range(count):
            locate(orders, tokens, first + 1 + k, pages, size, at[k], tags[k])
            for o in range(LEADS):
                prefetch(table, at[k, o])
        for k in range(count):
            first += 1
            keep(table, at[k], tags[k], first)
            followed[first] = carry(tokens, followed, first) or longest(at[k])


@njit
def same(tokens, place, end, most):
    """How many tokens before the two are the same, at most `most`."""
    length = 0
    while length < min(most, place) and tokens[place - 1 - length] == tokens[end - 1 - length]:
        length += 1
    return length


@njit
def choose(orders, tokens, end, places, carried):
    """The place of the longest match; of equal ones, the table's and not the one that is carried on."""
    for o in range(len(orders) - 1, -1, -1):
        place = places[o]
        if place and same(tokens, place, end, orders[o]) == orders[o]:
            if carried and carried != place:
                length = same(tokens, place, end, LONGEST)
                return carried if same(tokens, carried, end, length + 1) > length else place
            return place
    return carried


@njit
def propose(
    table,
    free,
    pages,
    sizes,
    known,
    follows,
    slots,
    token_ids,
    rows,
    lengths,
    limits,
    settings,
    orders,
    work,
    drafts,
    counts,
):
    """What `ContextTables.propose` says, one kind of read of all requests at a time."""
    at, tags, carried, spare, spare_tags = work
    shortest, per_match = settings
    flat, width = token_ids.reshape(-1), token_ids.shape[1]
    for i in range(len(slots)):
        end = np.int64(rows[i]) * width + lengths[i] - 1
        prefetch(flat, end)
        prefetch(flat, max(end - 16, 0))
        prefetch(follows[slots[i]], known[slots[i]])
        for page in range(0, np.int64(sizes[slots[i]]) // LINES, WAYS):
            prefetch(pages[slots[i]], page)
    for i in range(len(slots)):
        slot, tokens, followed = slots[i], token_ids[rows[i]], follows[slots[i]]
        known[slot] = min(known[slot], lengths[i])
        grow(table, free, pages, sizes, slot, lengths[i] * ENTRIES_A_TOKEN // WAYS + 1)
        size = np.uint64(sizes[slot])
        first = max(known[slot], lengths[i] - at.shape[1]) if size else lengths[i]
        if size:
            learn(table, orders, tokens, followed, known[slot], first, pages[slot], size, spare, spare_tags)
        known[slot] = first
        for k in range(lengths[i] - first):
            locate(orders, tokens, first + 1 + k, pages[slot], size, at[i, k], tags[i, k])
            for o in range(LEADS):
                prefetch(table, at[i, k, o])
        place = np.int64(followed[first])
        prefetch(followed, place)
        prefetch(flat, np.int64(rows[i]) * width + place)
        prefetch(flat, np.int64(rows[i]) * width + place + 2 * drafts.shape[1])
    for i in range(len(slots)):
        slot, tokens, followed = slots[i], token_ids[rows[i]], follows[slots[i]]
        counts[i] = lengths[i] - known[slot]
        for k in range(counts[i]):
            end = known[slot] + 1 + k
            keep(table, at[i, k], tags[i, k], end)
            carried[i] = carry(tokens, followed, end)
            followed[end] = carried[i] or longest(at[i, k])
        known[slot] = lengths[i]
        if counts[i]:
            here = np.int64(rows[i]) * width + longest(at[i, counts[i] - 1])
            prefetch(flat, here - 1)
            prefetch(flat, here + drafts.shape[1] - 1)
    for i in range(len(slots)):
        tokens, end, last = token_ids[rows[i]], lengths[i], counts[i] - 1
        counts[i] = 0
        if last < 0:
            continue
        place = choose(orders, tokens, end, at[i, last], carried[i])
        follows[slots[i], end] = place
        most = min(limits[i], drafts.shape[1])
        length = same(tokens, place, end, max(shortest, most))
        if length < max(shortest, 1):
            continue
        counts[i] = min(most, per_match * length) if per_match else most
        for j in range(counts[i]):
            drafts[i, j] = tokens[place + j] if place + j < end else drafts[i, place + j - end]


class ContextTables:
    """The tables of all running requests, called as SuffixAutomatonPool is; without groups.

    Args:
        num_draft_tokens, max_bytes, num_slots, min_match_length, drafts_per_match: as SuffixAutomatonPool's.
        max_length: tokens of the longest history, below 2^18.
    """

    def __init__(
        self, num_draft_tokens, max_length, max_bytes=1 << 30, num_slots=64, min_match_length=1, drafts_per_match=2
    ):
        if max_length >= PLACE:
            raise ValueError(f"max_length ({max_length}) must be below {PLACE}")
        self.num_draft_tokens, self.num_pages = num_draft_tokens, max_bytes // (4 * PAGE)
        self.num_capped = 0
        room = np.empty((self.num_pages + 1) * PAGE + WAYS, np.uint32)
        skipped = -(room.ctypes.data // 4) % WAYS  # so that a line is one of the cache's; page 0 is "too long"
        self._table = room[skipped : skipped + (self.num_pages + 1) * PAGE]
        self._free = np.arange(self.num_pages + 1, dtype=np.int64)
        self._free[0] = self.num_pages
        self._pages = np.zeros((num_slots, max_length * ENTRIES_A_TOKEN // PAGE + 1), np.int32)
        self._sizes, self._known = np.zeros(num_slots, np.int64), np.zeros(num_slots, np.int64)
        self._free_slots = list(range(num_slots - 1, -1, -1))
        self._settings, self._orders = (min_match_length, drafts_per_match), np.array(ORDERS, np.int32)
        self._follows = np.zeros((num_slots, max_length + 1), np.int32)
        shapes = [(num_slots, num_draft_tokens + 1, len(ORDERS)), (16, len(ORDERS))]
        (at, tags), spare = ([np.zeros(shape, kind) for kind in (np.int64, np.uint32)] for shape in shapes)
        self._work = (at, tags, np.zeros(num_slots, np.int64), *spare)

    def open(self, group: None = None) -> int:
        return self._free_slots.pop()

    def close(self, slot: int) -> None:
        count = int(self._sizes[slot]) // LINES
        height = int(self._free[0])
        self._free[height + 1 : height + 1 + count] = self._pages[slot, :count]
        self._free[0] += count
        self._sizes[slot] = self._known[slot] = 0
        self._free_slots.append(slot)

    def take_back(self, slot: int, length: int) -> None:
        """Tokens from `length` on are other ones now."""
        self._known[slot] = min(self._known[slot], length)

    def propose(self, slots, token_ids, rows, lengths, limits):
        """Adds what is new of each history and returns its drafts; arguments and result as SuffixAutomatonPool's."""
        drafts = np.empty((len(slots), self.num_draft_tokens), np.int32)
        counts = np.empty(len(slots), np.int32)
        state = (self._table, self._free, self._pages, self._sizes, self._known, self._follows)
        histories = (slots, token_ids, rows, lengths, limits)
        propose(*state, *histories, self._settings, self._orders, self._work, drafts, counts)
        return drafts, counts

    def used_bytes(self) -> int:
        return int(self._sizes.sum()) * WAYS * 4 + self.known_tokens() * 4

    def known_tokens(self) -> int:
        return int(self._known.sum())
