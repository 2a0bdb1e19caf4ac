"""The tables of hashed contexts against a search of every position, against themselves in other parts, and against the
suffix automaton; prints what was compared and what was wrong.

With NUMBA_DISABLE_JIT=1 the same code runs as Python, and what it reads is counted; then that is all that is done.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from typing import Any

import numpy as np
from automaton_reference import Searched, load_automaton, source_tokens, streams

AUTOMATON = load_automaton()
TABLES = import_module("vllm_ascend.spec_decode.context_tables")
DRAFTS = 4
ONE = np.ones(1, np.int32)


def tables(max_length: int = 40_000, **settings: int) -> Any:
    settings = {"num_draft_tokens": DRAFTS, "num_slots": 2, "max_bytes": 1 << 23} | settings
    return TABLES.ContextTables(max_length=max_length, **settings)


def told(pool: Any, slot: int, history: np.ndarray, limit: int = DRAFTS) -> list[int]:
    """The drafts for one slot, whose history is this one now."""
    found = pool.propose(ONE * slot, history[None, :], ONE * 0, ONE * len(history), ONE * limit)
    return AUTOMATON.as_lists(found)[0]


def in_parts(rng: np.random.Generator, length: int) -> list[int]:
    """Where steps end: mostly a token on, sometimes several as after skipped steps, first a prompt."""
    ends = [int(rng.integers(0, length // 3 + 1))]
    while ends[-1] < length:
        ends.append(min(length, ends[-1] + int(rng.choice([1, 1, 1, 2, 3, 5, 9, 40]))))
    return ends


def searched() -> dict[str, Any]:
    """Short histories: every draft follows an end of the history that occurred before, and goes on as there.

    An end of 1, 2 or 4 tokens that occurred is followed, or a longer one, and is missed only where a line was full.
    """
    rng = np.random.default_rng(1)
    compared, missed, wrong = 0, 0, []
    for shortest in (1, 3):
        pool = tables(min_match_length=shortest, drafts_per_match=0)
        for name, stream in streams(rng).items():
            slot, reference = pool.open(), Searched()
            index, at = reference.add(), 0
            for end in in_parts(rng, len(stream)):
                reference.extend(index, stream[at:end])
                history, at = np.array(stream[:end], np.int32), end
                drafted = told(pool, slot, history)
                length = reference.followed(history)[0]
                known = max((order for order in (1, 2, 4) if order <= length), default=0)
                compared += 1
                if drafted and not (len(drafted) == DRAFTS and follows(history, drafted, shortest)):
                    wrong.append([name, end, length, drafted])
                missed += known >= shortest and not (drafted and follows(history, drafted, known))
            pool.close(slot)
    return {"compared": compared, "wrong": wrong[:3], "missed": missed, "used": pool.used_bytes()}


def follows(history: np.ndarray, drafted: list[int], shortest: int) -> bool:
    """Whether all drafts follow one end of the history, of at least this many tokens, that occurred before.

    Where what is followed reaches the history's own end, it goes on with the drafts themselves.
    """
    whole = np.concatenate([history, np.array(drafted, np.int32)])
    places = [
        place
        for place in range(shortest, len(history))
        if (history[place - shortest : place] == history[len(history) - shortest :]).all()
    ]
    return any((whole[place : place + len(drafted)] == drafted).all() for place in places)


def parts() -> dict[str, Any]:
    """Histories of some thousand tokens: what is told depends on the tokens, not on the steps in which they came."""
    rng = np.random.default_rng(2)
    made = {
        "source": np.array(source_tokens(5000), np.int32),
        "few symbols": rng.integers(0, 5, 3000).astype(np.int32),
        "as source, large ids": np.array(source_tokens(2500), np.int32) + (1 << 30),
    }
    compared, wrong = 0, []
    pool = tables()
    for name, stream in made.items():
        slot = pool.open()
        for end in in_parts(rng, len(stream)):
            drafted = told(pool, slot, stream[:end])
            if end and rng.random() < 0.1:
                fresh = pool.open()
                compared += 1
                if drafted != told(pool, fresh, stream[:end]) or lines(pool, slot) != lines(pool, fresh):
                    wrong.append([name, end, drafted])
                pool.close(fresh)
        pool.close(slot)
    return {"compared": compared, "wrong": wrong[:3], "used": pool.used_bytes()}


def lines(pool: Any, slot: int) -> bytes:
    """All lines of a slot's table."""
    pages = pool._line_pages[slot, : pool._slots[slot, TABLES.LINE_PAGES]]
    return pool._memory.reshape(-1, TABLES.PAGE)[pages].tobytes()


def followed() -> dict[str, int]:
    """A long history in which most contexts of 4 tokens occur before and none of 8: places that follow no earlier one.

    `alike` are the places where the contexts of 4 and of 8, which share a line, have one tag too.
    """
    history, pool = np.random.default_rng(7).integers(0, 12, 120_000).astype(np.int32), tables(1 << 17)
    slot = pool.open()
    told(pool, slot, history)
    places = pool._memory.reshape(-1, TABLES.PAGE)[pool._place_pages[slot]].reshape(-1)
    at, tags, alike = np.zeros(4, np.int64), np.zeros(4, np.uint32), 0
    for end in range(8, len(history)):
        TABLES.locate(history, end, pool._line_pages[slot], pool._slots[slot, TABLES.LINE_PAGES], at, tags)
        alike += int(tags[2] == tags[3])
    ends = np.arange(1, len(history) + 1)
    return {"alike": alike, "ahead": int((places[ends] >= ends).sum())}


def together() -> dict[str, Any]:
    """Many requests in one call, in and out of the batch, more than there were slots; each is told what it is alone."""
    rng = np.random.default_rng(3)
    pool, single = tables(600, num_slots=1), tables(600)
    rows = np.stack([np.resize(source_tokens(9000)[300 * i :], 600) for i in range(12)]).astype(np.int32)
    rows[3], rows[4] = rng.integers(0, 2, 600), 7
    slots = np.array([pool.open() for _ in rows], np.int32)
    lengths = rng.integers(0, 200, len(rows)).astype(np.int32)
    compared, wrong = 0, []
    for step in range(60):
        some = np.flatnonzero(rng.random(len(rows)) < 0.7).astype(np.int32)
        lengths[some] += rng.choice([1, 1, 2, 5], len(some)).astype(np.int32)
        limits = rng.choice([DRAFTS, 2, 0], len(some)).astype(np.int32)
        found = AUTOMATON.as_lists(pool.propose(slots[some], rows, some, lengths[some], limits))
        for row, limit, drafted in zip(some, limits, found, strict=True):
            slot = single.open()
            compared += 1
            if drafted != told(single, slot, rows[row, : lengths[row]].copy(), int(limit)):
                wrong.append([step, int(row), drafted])
            single.close(slot)
        if rng.random() < 0.3:  # one ends, and another takes its slot
            row = int(rng.integers(len(rows)))
            pool.close(int(slots[row]))
            slots[row], lengths[row] = pool.open(), int(rng.integers(0, 200))
    for slot in slots.tolist():
        pool.close(slot)
    return {"compared": compared, "wrong": wrong[:3], "used": pool.used_bytes()}


def anew() -> dict[str, Any]:
    """A history that was taken back and goes on differently, and one that is forgotten, are as fresh ones."""
    rng = np.random.default_rng(4)
    pool, wrong = tables(), []
    slot = pool.open()
    first = rng.integers(0, 4, 900).astype(np.int32)
    told(pool, slot, first)
    for keep, said in ((300, False), (0, False), (880, True), (900, True)):
        other = np.concatenate([first[:keep], rng.integers(0, 4, 200 if said else 20)]).astype(np.int32)
        if said:
            pool.forget(slot)
        if keep == 0:
            told(pool, slot, first[:0])
        fresh = pool.open()
        if told(pool, slot, other) != told(pool, fresh, other):
            wrong.append([keep, said])
        pool.close(fresh)
    pool.close(slot)
    return {"wrong": wrong, "used": pool.used_bytes()}


def settings() -> dict[str, Any]:
    """Limits of a request, and drafts a token of the match."""
    history = np.array([9, 1, 2, 3, 4, 5, 1, 2], np.int32)
    pool = tables()
    found = {"limits": [len(told(pool, slot, history, limit)) for slot in [pool.open()] for limit in (-3, 0, 1, 3, 99)]}
    for name, limit in {"unset": {}, "0": {"drafts_per_match": 0}, "1": {"drafts_per_match": 1}}.items():
        for length, known in (("", history), (", one token", history[:-1])):
            pool = tables(**limit)
            found[name + length] = told(pool, pool.open(), known)
    for name, drafts, known in (
        ("shortest", DRAFTS, history),
        ("fewer than the match", 1, np.tile(history[:6], 2)[:9]),
    ):
        pool = tables(num_draft_tokens=drafts, min_match_length=3)
        found[name] = told(pool, pool.open(), known)
    return found


def capped() -> dict[str, Any]:
    """A pool of a few pages: who outgrows it gets no more drafts, the others do, and the pages come back."""
    rng = np.random.default_rng(5)
    pool = tables(max_bytes=8 * TABLES.PAGE_BYTES)
    small, large = pool.open(), pool.open()
    rows = rng.integers(0, 2, (2, 4000)).astype(np.int32)
    said = [len(told(pool, small, rows[0, :200]))]
    said += [len(told(pool, large, rows[1, :n])) for n in (500, 600, 3900, 3950)]
    state = [pool.is_capped(large), pool.is_capped(small), pool.num_capped]
    pool.forget(large)
    state += [pool.is_capped(large), len(told(pool, large, rows[1, :100])), len(told(pool, small, rows[0, :210]))]
    used = [pool.used_bytes()]
    pool.close(large)
    large = pool.open()
    state += [pool.is_capped(large), len(told(pool, large, rows[1, :600]))]
    pool.close(large)
    pool.close(small)
    return {"told": said, "state": state, "used": [*used, pool.used_bytes()]}


def sizes() -> dict[str, float]:
    """Bytes a token."""
    pool, found = tables(), {}
    for length in (1024, 8192, 32768):
        slot = pool.open()
        told(pool, slot, np.resize(source_tokens(1 << 20), length).astype(np.int32))
        found[str(length)] = pool.used_bytes() / length
        pool.close(slot)
    return found


def steps() -> dict[str, list[int]]:
    """The steps that greedy verification takes, with the automaton's drafts and with the tables'."""
    rng = np.random.default_rng(6)
    fibonacci = streams(rng)["fibonacci"]
    text = np.array(source_tokens(1 << 20), np.int32)
    made = {"source": text[:8000], "fibonacci": np.resize(fibonacci, 900).astype(np.int32)}
    return {
        f"{name}, {drafts}": [replayed(pool, stream, drafts) for pool in (
            AUTOMATON.SuffixAutomatonPool(drafts, max_bytes=1 << 23, num_slots=1), tables(num_draft_tokens=drafts)
        )]
        for name, stream in made.items()
        for drafts in (3, 8)
    }  # fmt: skip


def replayed(pool: Any, stream: np.ndarray, drafts: int) -> int:
    slot, length, count = pool.open(), len(stream) // 10, 0
    while length < len(stream):
        for right in told(pool, slot, stream[:length], drafts):
            if length == len(stream) or stream[length] != right:
                break
            length += 1
        length, count = length + 1, count + 1
    return count


def misuse() -> dict[str, str]:
    said = {}
    for change in (
        {"num_draft_tokens": 0},
        {"min_match_length": 0},
        {"drafts_per_match": -1},
        {"num_slots": 0},
        {"max_bytes": 8191},
        {"max_length": 0},
        {"max_length": 1 << 18},
    ):
        try:
            tables(**change)
        except ValueError as error:
            said[str(change)] = str(error)
    tables(1).warm_up()
    try:
        pool = tables(10)
        told(pool, pool.open(), np.ones(11, np.int32))
    except ValueError as error:
        said["'max_length'"] = str(error)
    return said


def scanned(memory: np.ndarray, line: int, tag: int) -> tuple[int, int]:
    """What TABLES.scan finds in a line, entry by entry."""
    entries = [int(memory[line + way]) for way in range(TABLES.WAYS)]
    keys = [(entry & TABLES.PLACE) * TABLES.WAYS + way for way, entry in enumerate(entries)]
    same = [key for key, entry in zip(keys, entries, strict=True) if entry & ~TABLES.PLACE == tag]
    return max(same, default=0), min(keys)


def copy_page(memory: np.ndarray, source: int, target: int) -> None:
    memory[target : target + TABLES.PAGE] = memory[source : source + TABLES.PAGE]


def scans() -> dict[str, int]:
    """Lines of chance, some with a tag that is asked for, once or several times: what is found is what a loop finds."""
    rng = np.random.default_rng(5)
    memory = rng.integers(0, 1 << 32, 2000 * TABLES.WAYS, dtype=np.uint32)
    memory[rng.random(len(memory)) < 0.2] = 0
    counted = {"known": 0, "unknown": 0, "wrong": 0}
    for line in range(0, len(memory), TABLES.WAYS):
        tag = int(memory[line + rng.integers(TABLES.WAYS)]) & ~TABLES.PLACE
        if line % 64 == 0:
            tag ^= 1 << 31
        elif line % 32 == 0:
            memory[line + 3] = memory[line + 9] = tag | int(rng.integers(1, TABLES.PLACE))
        same, oldest = scanned(memory, line, tag)
        key = same if same >= TABLES.WAYS else oldest
        right = (same // TABLES.WAYS, line + key % TABLES.WAYS)
        counted["known" if right[0] else "unknown"] += 1
        counted["wrong"] += TABLES.look(memory, line, np.uint32(tag)) != right
    return counted


class Counted(np.ndarray):
    """An array that counts the reads of single elements."""

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        if not isinstance(found, np.ndarray):
            self.counts[0] += 1
        return found

    def __array_finalize__(self, source: Any) -> None:
        self.counts = getattr(source, "counts", None) or [0]


def reads() -> dict[str, Any]:
    """The most reads of a step of one token, of the tables' memory and of the history."""
    TABLES.prefetch = lambda array, at: None  # asks the processor, which Python cannot; it changes nothing
    TABLES.scan = lambda memory, line, tag: map(np.uint32, scanned(memory, line, int(tag)))  # `scans` holds them equal
    TABLES.copy = copy_page  # no lookup: a table that grows
    found = {}
    with np.errstate(over="ignore"):
        for name, stream in (("source", source_tokens(700)), ("one symbol", [7] * 400)):
            pool = tables(1000)
            slot, most = pool.open(), np.zeros(2, int)
            pool._memory = pool._memory.view(Counted)
            for end in range(1, len(stream)):
                row = np.array([stream[:end]], np.int32).view(Counted)
                pool._memory.counts, row.counts = [0], [0]
                pool.propose(ONE * slot, row, ONE * 0, ONE * end, ONE * DRAFTS)
                most = np.maximum(most, [pool._memory.counts[0], row.counts[0]])
            found[name] = most.tolist()
    return found


CASES = [searched, parts, followed, together, anew, settings, capped, sizes, steps, scans, misuse]

if __name__ == "__main__":
    cases = [reads] if os.environ.get("NUMBA_DISABLE_JIT") == "1" else CASES
    results = {case.__name__: case() for case in cases}
    print(json.dumps(results | {"imported": sorted({"torch", "vllm"} & set(sys.modules))}))
