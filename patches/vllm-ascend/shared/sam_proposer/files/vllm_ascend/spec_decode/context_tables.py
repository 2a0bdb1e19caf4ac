# SPDX-License-Identifier: Apache-2.0
"""Tables of hashed contexts of requests' token histories: where the last tokens stood before, and what followed them.

For each of some orders k a request's table holds the place behind its last k tokens. The history itself is the key:
what a place claims is compared with it, so that another context's place costs a look and is never followed, and a full
line can forget its oldest place. No model is run and nothing is searched.

Two things make the drafts as good as those of a suffix automaton (`suffix_automaton`), which knows every context:

- Update exclusion (as in PPM; Moffat, 1990). At each token only the longest known context, the next shorter one and
  those above are written, so that a short context has what followed it where no longer one knew better.
- Each place remembers the place that it followed. What was followed is followed on while it is right, however long the
  match, and where it fails, what that had followed in its turn, unless a longer context than that has now is known.

A line is 16 entries, 64 bytes. The lines of a token follow from its last tokens alone: in a step those of all requests
are prefetched before the first is read, where in an automaton each read names the next one. A table grows by a page as
its history does (linear hashing; Litwin, 1980): the page from which the new one's contexts split is copied, and what
then stands in the wrong one of the two is forgotten as it ages. What a request is told depends on its tokens alone, and
not on how many of them came in a step.

Memory. Pages of 4 KiB in one array, of which the system backs a piece when it is first written: one for the lines of
256 tokens, one for the places of 1,024, 20 bytes a token and at most two pages more. Pages of closed requests are used
again before new ones. A request for which no page is free gets no drafts any more, while others go on.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from vllm_ascend.spec_decode.suffix_automaton_kernels import compiled

ORDERS = (1, 2, 4, 8)  # ascending; tokens
LEADS = 3  # so many orders choose a line of their own; the others lie in the last of these
PLACE_BITS = 18  # of an entry; the others are its context's tag
PLACE = MAX_LENGTH = (1 << PLACE_BITS) - 1
WAYS = 16  # entries of a line
LINES = 64  # of a page
PAGE = LINES * WAYS  # uint32
PAGE_BYTES = 4 * PAGE
GROWTH = 256  # tokens that add a page of lines: four entries a token
TOGETHER = 16  # tokens of one history whose lines are prefetched together
# Of a slot: how many tokens it knows, its pages of lines and of places, whether it was given up.
KNOWN, LINE_PAGES, PLACE_PAGES, LOST = range(4)


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


@compiled
def release(free, line_pages, place_pages, slot):
    """Gives the slot's pages back, and forgets its tokens. `free` is a stack below its height, element 0."""
    for pages, count in ((line_pages, slot[LINE_PAGES]), (place_pages, slot[PLACE_PAGES])):
        for i in range(count):
            free[0] += 1
            free[free[0]] = pages[i]
    slot[:] = 0


@compiled
def copy(memory, source, target):
    """Makes one page what another is."""
    for i in range(PAGE):
        memory[target + i] = memory[source + i]


@compiled
def grow(memory, free, line_pages, place_pages, slot, end):
    """Takes the pages that the place `end` is the first to need; False when none is free."""
    while slot[LINE_PAGES] <= end // GROWTH:
        if free[0] == 0:
            return False
        page, count = np.int64(free[free[0]]), slot[LINE_PAGES]
        free[0] -= 1
        if count == 0:
            memory[page * PAGE : (page + 1) * PAGE] = 0
        else:
            half = 1
            while 2 * half <= count:
                half *= 2
            copy(memory, np.int64(line_pages[count - half]) * PAGE, page * PAGE)
        line_pages[count] = page
        slot[LINE_PAGES] += 1
    while slot[PLACE_PAGES] <= end // PAGE:
        if free[0] == 0:
            return False
        place_pages[slot[PLACE_PAGES]] = free[free[0]]
        memory[np.int64(free[free[0]]) * PAGE] = 0  # place 0, of which nothing is followed
        free[0] -= 1
        slot[PLACE_PAGES] += 1
    return True


@compiled
def field(place_pages, place):
    """The offset of what the place followed."""
    return np.int64(place_pages[place // PAGE]) * PAGE + place % PAGE


@compiled
def locate(tokens, end, line_pages, count, at, tags):
    """Writes the lines of the contexts that end before `end`, as offsets (0: too long), and their tags.

    `count` is the table's number of pages: of the two candidates of linear hashing the one that exists is taken.
    """
    whole = np.uint64(1)
    while whole < count:
        whole <<= np.uint64(1)
    h, line, j = np.uint64(0x9E3779B97F4A7C15), np.int64(0), 0
    for o in range(len(ORDERS)):
        if ORDERS[o] > end:
            at[o] = 0
            continue
        while j < ORDERS[o]:
            j += 1
            h = (h ^ np.uint64(np.uint32(tokens[end - j]))) * np.uint64(0xD6E8FEB86659FD93)
            h ^= h >> np.uint64(29)
        if o < LEADS:
            page = (h >> np.uint64(6)) & (whole - np.uint64(1))
            if page >= count:
                page &= (whole >> np.uint64(1)) - np.uint64(1)
            line = np.int64(line_pages[page]) * PAGE + np.int64(h % np.uint64(LINES)) * WAYS
        at[o] = line
        tags[o] = np.uint32(h >> np.uint64(32)) & ~np.uint32(PLACE)


@intrinsic
def scan(typing_context, memory, line, tag):
    """Of the entries of a line: the latest place with this tag, 0 for none, and the oldest, each with its way below it.

    In LLVM's vectors, of which it makes the instructions of any processor: the same as a loop takes nine times as long.
    """

    def generate(context, builder, signature, args):
        number, entries = ir.IntType(32), ir.VectorType(ir.IntType(32), WAYS)

        def all_of(values):
            return ir.Constant(entries, [number(value) for value in values])

        def reduced(name, vector):
            kind = ir.FunctionType(number, [entries])
            name = f"llvm.vector.reduce.{name}.v{WAYS}i32"
            return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [vector])

        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        read = builder.load(builder.bitcast(builder.gep(data, [args[1]]), entries.as_pointer()))
        read.align = 4
        nothing = ir.Constant(entries, ir.Undefined)
        tags = builder.insert_element(nothing, args[2], number(0))
        tags = builder.shuffle_vector(tags, nothing, all_of([0] * WAYS))
        bits = WAYS.bit_length() - 1
        places = builder.shl(builder.and_(read, all_of([PLACE] * WAYS)), all_of([bits] * WAYS))
        keys = builder.or_(places, all_of(range(WAYS)))
        is_same = builder.icmp_unsigned("==", builder.and_(read, all_of([0xFFFFFFFF ^ PLACE] * WAYS)), tags)
        same = builder.select(is_same, keys, all_of([0] * WAYS))
        return context.make_tuple(builder, signature.return_type, [reduced("umax", same), reduced("umin", keys)])

    return types.UniTuple(types.uint32, 2)(memory, types.int64, types.uint32), generate


@compiled
def look(memory, line, tag):
    """A context's place, 0 for none, and the offset of its entry, without one that of the line's oldest."""
    same, oldest = scan(memory, line, tag)
    if same < WAYS:
        return np.int64(0), np.uint64(line) + np.uint64(oldest % np.uint32(WAYS))
    return np.int64(same // np.uint32(WAYS)), np.uint64(line) + np.uint64(same % np.uint32(WAYS))


@compiled
def keep(memory, at, tags, end):
    """Writes `end` for the longest known of the contexts before it, for the next shorter and for those above.

    A long context, which has no line of its own, is written only where the next shorter is known. What was there before
    replaces the lines in `at`, for the two known ones; 0 for the others.
    """
    known, above = False, np.uint64(0)
    for o in range(len(at) - 1, -1, -1):
        if at[o] == 0:
            continue
        place, entry = look(memory, at[o], tags[o])
        at[o] = place
        if known:
            memory[entry] = tags[o] | np.uint32(end)
            at[:o] = 0
            return
        if place and above:
            memory[above] = tags[o + 1] | np.uint32(end)
        known, above = place > 0, entry if o >= LEADS else np.uint64(0)
        if known or o < LEADS:
            memory[entry] = tags[o] | np.uint32(end)


@compiled
def longest(places):
    """The place of the longest known context, 0 for none."""
    for o in range(len(places) - 1, -1, -1):
        if places[o]:
            return places[o]
    return np.int64(0)


@compiled
def same(tokens, place, end, most):
    """How many tokens before the two are the same, at most `most`."""
    length = 0
    while length < min(most, place) and tokens[place - 1 - length] == tokens[end - 1 - length]:
        length += 1
    return length


@compiled
def choose(tokens, end, places, carried):
    """The place of the longest context that is known, 0 for none; what is carried on, if it has that context too."""
    for o in range(len(places) - 1, -1, -1):
        place = places[o]
        # Two contexts of one line can have one tag: `keep` has then read back what it had just written, `end` itself.
        if 0 < place < end and same(tokens, place, end, ORDERS[o]) == ORDERS[o]:
            return carried if carried and same(tokens, carried, end, ORDERS[o]) == ORDERS[o] else place
    return carried


@compiled
def follow(memory, place_pages, tokens, places, end):
    """Chooses the place that the tokens before `end` follow, of those in the table and what was followed so far."""
    before = np.int64(memory[field(place_pages, end - 1)])
    carried = np.int64(0)
    for place in (before, np.int64(memory[field(place_pages, before)])):
        if carried == 0 and place and tokens[place] == tokens[end - 1]:
            carried = place + 1
    place = choose(tokens, end, places, carried)
    memory[field(place_pages, end)] = place
    return place


@compiled
def learn(memory, free, line_pages, place_pages, slot, tokens, last, at, tags):
    """Learns the places up to `last`; False when no page is free. `at` and `tags` are room for some tokens."""
    while slot[KNOWN] < last:
        first = slot[KNOWN] + 1
        if not grow(memory, free, line_pages, place_pages, slot, first):
            return False
        count = min(len(at), last + 1 - first, GROWTH - first % GROWTH)
        for k in range(count):
            locate(tokens, first + k, line_pages, slot[LINE_PAGES], at[k], tags[k])
            for o in range(LEADS):
                prefetch(memory, at[k, o])
        for k in range(count):
            keep(memory, at[k], tags[k], first + k)
        for k in range(count):
            follow(memory, place_pages, tokens, at[k], first + k)
        slot[KNOWN] += count
    return True


@compiled
def propose(
    memory,
    free,
    line_pages,
    place_pages,
    states,
    slots,
    token_ids,
    rows,
    lengths,
    limits,
    settings,
    at,
    tags,
    found,
):
    """What `ContextTables.propose` says, one kind of read of all requests at a time.

    `settings` are the longest history, the shortest match and the drafts a token of the match; `at` and `tags` are room
    for a step's own tokens of each request and TOGETHER more; `found` is what is returned there. Returns how many were
    given up; -1, with nothing done, where a history is too long.
    """
    longest_history, shortest, per_match = settings[0], settings[1], settings[2]
    drafts, counts = found[:, :-1], found[:, -1]
    for length in lengths:
        if length > longest_history:
            return -1
    together = drafts.shape[1] + 1
    many, many_tags = at[len(slots) * together :], tags[len(slots) * together :]
    flat, width = token_ids.reshape(-1), token_ids.shape[1]
    lost = 0
    for i in range(len(slots)):
        end = np.int64(rows[i]) * width + lengths[i] - 1
        prefetch(flat, end)
        prefetch(flat, max(end - 16, 0))
        state = states[slots[i]]
        prefetch(place_pages[slots[i]], state[KNOWN] // PAGE)
        for page in range(0, state[LINE_PAGES], WAYS):
            prefetch(line_pages[slots[i]], page)
    for i in range(len(slots)):
        lines, places, slot = line_pages[slots[i]], place_pages[slots[i]], states[slots[i]]
        tokens, end = token_ids[rows[i]], np.int64(lengths[i])
        counts[i] = 0
        if slot[LOST]:
            continue
        if slot[KNOWN] > end:
            release(free, lines, places, slot)
        if end == 0:
            continue
        start = max(slot[KNOWN], end - together, end // GROWTH * GROWTH - 1)
        if not learn(memory, free, lines, places, slot, tokens, start, many, many_tags) or (
            start < end and not grow(memory, free, lines, places, slot, start + 1)
        ):
            release(free, lines, places, slot)
            slot[LOST] = 1
            lost += 1
            continue
        counts[i] = end - start
        for k in range(counts[i]):
            own = i * together + k
            locate(tokens, start + 1 + k, lines, slot[LINE_PAGES], at[own], tags[own])
            for o in range(LEADS):
                prefetch(memory, at[own, o])
        place = np.int64(memory[field(places, start)])
        prefetch(memory, field(places, place))
        prefetch(flat, np.int64(rows[i]) * width + place)
    for i in range(len(slots)):
        start = states[slots[i], KNOWN]
        for k in range(counts[i]):
            own = i * together + k
            keep(memory, at[own], tags[own], start + 1 + k)
            here = np.int64(rows[i]) * width + longest(at[own])
            prefetch(flat, here - 1)
            prefetch(flat, here + drafts.shape[1] - 1)
    for i in range(len(slots)):
        slot, tokens, end = states[slots[i]], token_ids[rows[i]], np.int64(lengths[i])
        if slot[LOST] or end == 0:
            continue
        places, start = place_pages[slots[i]], slot[KNOWN]
        for k in range(counts[i]):
            follow(memory, places, tokens, at[i * together + k], start + 1 + k)
        slot[KNOWN] = end
        place = np.int64(memory[field(places, end)])
        counts[i] = 0
        most = min(limits[i], drafts.shape[1])
        length = same(tokens, place, end, max(shortest, most))
        if length < max(shortest, 1) or most < 1:
            continue
        counts[i] = min(most, per_match * length) if per_match else most
        for j in range(counts[i]):
            drafts[i, j] = tokens[place + j] if place + j < end else drafts[i, place + j - end]
    return lost


class ContextTables:
    """The tables of all running requests, called as `SuffixAutomatonPool` is, and without groups.

    A *slot* is an int that stands for one request's history. Token ids are 0 or more. Not thread-safe.

    Args:
        num_draft_tokens: the most drafts a request and call, at least 1.
        max_length: tokens of the longest history, 1 to MAX_LENGTH.
        min_match_length: no drafts where the match is shorter, at least 1 (tokens).
        max_bytes: what all tables together may take, at least two pages (8 KiB). Beside them lie the numbers of each
            slot's pages, 20 bytes for 1,024 tokens of max_length.
        num_slots: slots to begin with; more are made when they are needed.
        drafts_per_match: at most so many drafts a token of the match, since short matches are wrong more often; 0 for
            no such limit.

    Raises:
        ValueError: an argument is out of its range.
    """

    def __init__(
        self,
        num_draft_tokens: int,
        max_length: int,
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
        if num_pages < 2 or not 1 <= max_length <= MAX_LENGTH:
            raise ValueError(
                f"max_bytes ({max_bytes}) must be at least {2 * PAGE_BYTES}, "
                f"max_length ({max_length}) 1 to {MAX_LENGTH}"
            )
        self.num_draft_tokens = num_draft_tokens
        self.max_length = max_length
        self.num_capped = 0  # histories given up so far because no page was free
        self._settings = np.array([max_length, min_match_length, drafts_per_match])
        room = np.empty((num_pages + 1) * PAGE + WAYS, np.uint32)
        skipped = -(room.ctypes.data // 4) % WAYS  # so that a line is one of the cache's
        self._memory = room[skipped : skipped + (num_pages + 1) * PAGE]  # page 0 is none
        self._free = np.array([num_pages, *range(num_pages, 0, -1)], np.int32)  # a stack below its height
        self._line_pages = np.zeros((num_slots, max_length // GROWTH + 1), np.int32)
        self._place_pages = np.zeros((num_slots, max_length // PAGE + 1), np.int32)
        self._slots = np.zeros((num_slots, LOST + 1), np.int64)
        self._free_slots = list(range(num_slots - 1, -1, -1))
        self._make_room(1)

    def open(self, group: None = None) -> int:
        """A new slot with an empty history."""
        if not self._free_slots:
            self._double()
        return self._free_slots.pop()

    def close(self, slot: int) -> None:
        """Frees the slot and its memory."""
        self._release(slot)
        self._free_slots.append(slot)

    def forget(self, slot: int) -> None:
        """Makes the slot's history empty."""
        if not self.is_capped(slot):
            self._release(slot)

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
            token_ids: int32 [rows, width], contiguous, such as the input batch's `token_ids_cpu`.
            rows: int32 [n], the row of `token_ids` that holds the slot's history.
            lengths: int32 [n], the length of that history, at most max_length: accepted tokens only. What the slot does
                not know yet is added, however many tokens; a history shorter than the known one is taken anew.
            limits: int32 [n], at most so many drafts; 0 only adds.

        Returns:
            int32 [n, num_draft_tokens + 1]: of each row its drafts, what is behind them is undefined, and in its last
            place how many they are. The next call writes over it.

        Raises:
            ValueError: a history is longer than max_length.
        """
        # At one request, Python's part is most of a call: room is kept, and an array is handed over faster than a tuple.
        if len(slots) != len(self._found):
            self._make_room(len(slots))
        lost = propose(
            self._memory,
            self._free,
            self._line_pages,
            self._place_pages,
            self._slots,
            slots,
            token_ids,
            rows,
            lengths,
            limits,
            self._settings,
            self._at,
            self._tags,
            self._found,
        )
        if lost < 0:
            raise ValueError(f"a history has {lengths.max()} tokens, and max_length is {self.max_length}")
        self.num_capped += lost
        return self._found

    def warm_up(self) -> None:
        """Compiles what the other methods call, so that no step of a request waits for it."""
        slot, one = self.open(), np.ones(1, np.int32)
        self.propose(one * slot, np.array([[1, 2, 1, 2]], np.int32), one * 0, one * min(4, self.max_length), one)
        self.close(slot)

    def known_length(self, slot: int) -> int:
        """How many tokens the slot's history has."""
        return int(self._slots[slot, KNOWN])

    def is_capped(self, slot: int) -> bool:
        """Whether the slot's history was given up for lack of memory."""
        return bool(self._slots[slot, LOST])

    def used_bytes(self) -> int:
        """Bytes of the pages that are taken."""
        return int(self._slots[:, LINE_PAGES : PLACE_PAGES + 1].sum()) * PAGE_BYTES

    def _release(self, slot: int) -> None:
        release(self._free, self._line_pages[slot], self._place_pages[slot], self._slots[slot])

    def _make_room(self, count: int) -> None:
        """Makes what a call for so many requests writes to."""
        tokens = count * (self.num_draft_tokens + 1) + TOGETHER
        self._at, self._tags = np.empty((tokens, len(ORDERS)), np.int64), np.empty((tokens, len(ORDERS)), np.uint32)
        self._found = np.empty((count, self.num_draft_tokens + 1), np.int32)

    def _double(self) -> None:
        """Makes as many slots as there are."""
        old = len(self._slots)
        for name in ("_line_pages", "_place_pages", "_slots"):
            rows = getattr(self, name)
            setattr(self, name, np.concatenate([rows, np.zeros_like(rows)]))
        self._free_slots += range(2 * old - 1, old - 1, -1)
