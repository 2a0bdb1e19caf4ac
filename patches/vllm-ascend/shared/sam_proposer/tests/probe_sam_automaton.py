"""The suffix automaton against a search of every position; prints what was compared and what was wrong."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
from automaton_reference import Searched, load_automaton, source_tokens, streams

AUTOMATON = load_automaton()
DRAFTS = 4
WIDTH = 1000


class Driver:
    """A pool and the reference of each of its slots, side by side."""

    def __init__(self, shortest: int = 1, per_match: int = 0, max_bytes: int = 1 << 24) -> None:
        self.pool = AUTOMATON.SuffixAutomatonPool(DRAFTS, shortest, max_bytes, 2, per_match)
        self.shortest, self.per_match = shortest, per_match
        self.rows = np.zeros((16, WIDTH), np.int32)
        self.at: dict[int, tuple[Searched, int]] = {}
        self.wrong: list[str] = []
        self.compared = self.chosen = self.latest = 0

    def open(self, reference: Searched | None = None, group: Any = None) -> int:
        reference = reference or Searched()
        slot = self.pool.open(group)
        self.at[slot] = (reference, reference.add())
        return slot

    def history(self, slot: int) -> np.ndarray:
        reference, index = self.at[slot]
        return reference.histories[index]

    def step(self, new: dict[int, list[int]]) -> dict[int, list[int]]:
        """Appends to several slots in one call and compares what each of them is then told."""
        for slot, tokens in new.items():
            reference, index = self.at[slot]
            self.rows[slot, len(self.history(slot)) : len(self.history(slot)) + len(tokens)] = tokens
            reference.extend(index, tokens)
        return self.compare(list(new))

    def compare(self, slots: list[int]) -> dict[int, list[int]]:
        numbers = np.array(slots, np.int32)
        lengths = np.array([len(self.history(slot)) for slot in slots], np.int32)
        found = self.pool.propose(numbers, self.rows, numbers, lengths, np.full(len(slots), DRAFTS, np.int32))
        lists = AUTOMATON.as_lists(found)
        for slot, drafted in zip(slots, lists, strict=True):
            self.check(slot, drafted)
        return dict(zip(slots, lists, strict=True))

    def check(self, slot: int, drafted: list[int]) -> None:
        reference, history = self.at[slot][0], self.history(slot)
        length, followers = reference.followed(history)
        most = min(DRAFTS, self.per_match * length) if self.per_match else DRAFTS
        said = f"{history.tolist()[-40:]} (of {len(history)}): {self.pool.match_length(slot)}, {drafted}"
        self.compared += 1
        if self.pool.match_length(slot) != length:
            self.wrong.append(f"{said}; the longest is {length}")
        if len(drafted) != (most if length >= self.shortest else 0) and not self.ends(reference, history, drafted):
            self.wrong.append(f"{said}; {most} drafts are allowed, match {length}")
        if drafted and drafted[0] not in followers:
            self.wrong.append(f"{said}; what follows is {followers}")
        for i, token in enumerate(drafted[1:], 1):
            context = np.concatenate([history, np.array(drafted[:i], np.int32)])
            if not reference.is_followed(context, token, self.shortest):
                self.wrong.append(f"{said}; nothing leads to draft {i}")
        if drafted and len(set(followers)) > 1:
            self.chosen += 1
            self.latest += drafted[0] == followers[-1]

    def ends(self, reference: Searched, history: np.ndarray, drafted: list[int]) -> bool:
        """Whether nothing long enough follows the drafts: where another member of a group has come to its end."""
        if not drafted or len(reference.histories) == 1:
            return False
        return reference.followed(np.concatenate([history, np.array(drafted, np.int32)]))[0] < self.shortest

    def close(self, slot: int) -> None:
        self.pool.close(slot)
        del self.at[slot]

    def report(self, **more: Any) -> dict[str, Any]:
        return {"wrong": self.wrong[:3], "compared": self.compared, "used": self.pool.used_bytes(), **more}


def in_parts(rng: np.random.Generator, stream: list[int]) -> list[list[int]]:
    """Cuts a stream into what steps append: mostly a token, sometimes several as after skipped steps, first a prompt."""
    parts, at = [], int(rng.integers(0, len(stream) // 3 + 1))
    if at:
        parts.append(stream[:at])
    while at < len(stream):
        size = int(rng.choice([1, 1, 1, 2, 3, 9]))
        parts.append(stream[at : at + size])
        at += size
    return parts


def single() -> dict[str, Any]:
    """Each stream alone in a slot; the slots are the same few again and again."""
    rng = np.random.default_rng(1)
    driver = Driver()
    for stream in streams(rng).values():
        slot = driver.open()
        for part in in_parts(rng, stream):
            driver.step({slot: part})
        driver.close(slot)
    return driver.report(chosen=driver.chosen, latest=driver.latest)


def settings() -> dict[str, Any]:
    """Shortest matches and numbers of drafts a token of the match; a limit for each request."""
    found = {}
    for shortest, per_match in ((3, 0), (1, 1), (2, 2)):
        rng = np.random.default_rng(2)
        driver = Driver(shortest, per_match)
        for name in ("random 3.0", "noisy period", "source"):
            slot = driver.open()
            for part in in_parts(rng, streams(rng)[name]):
                driver.step({slot: part})
            driver.close(slot)
        found[f"{shortest}, {per_match}"] = driver.report()
    driver = Driver()
    slot = driver.open()
    driver.step({slot: [1, 2, 1, 2, 1]})
    one = np.ones(1, np.int32)
    limits = [
        driver.pool.propose(one * slot, driver.rows, one * slot, one * 5, one * n)[0, -1] for n in (-3, 0, 1, 3, 99)
    ]
    return found | {"limits": [int(n) for n in limits]}


def together() -> dict[str, Any]:
    """Many requests in one call, in and out of the batch, some skipped for steps; slots and pages are used again."""
    rng = np.random.default_rng(3)
    driver = Driver()
    left: dict[int, list[list[int]]] = {}
    most = 0
    for stream in [*streams(rng).values(), *streams(rng).values()]:
        left[driver.open()] = in_parts(rng, stream)
        while len(left) >= 8:
            some = [slot for slot in left if rng.random() < 0.7]
            driver.step({slot: left[slot].pop(0) for slot in some})
            for slot in [slot for slot in some if not left[slot] or rng.random() < 0.01]:
                driver.close(slot)  # it ended, or was aborted
                del left[slot]
            most = max(most, driver.pool.used_bytes())
    for slot in left:
        driver.close(slot)
    return driver.report(most=most)


def synced() -> dict[str, Any]:
    """A history that goes on, one that was cut and goes on differently, another of the same length, none."""
    rng = np.random.default_rng(4)
    driver = Driver()
    slot = driver.open()
    driver.step({slot: rng.integers(0, 3, 60).tolist()})
    for keep, new in ((60, 12), (72, 0), (40, 32), (10, 3), (0, 50), (50, 1), (0, 0), (0, 20)):
        reference, index = driver.at[slot]
        tokens = np.concatenate([driver.history(slot)[:keep], rng.integers(0, 3, new)]).astype(np.int32)
        driver.pool.sync(slot, tokens)
        reference.histories[index] = tokens
        driver.rows[slot, : len(tokens)] = tokens
        driver.compare([slot])
        # A shorter history, without a word: `propose` finds that out by itself.
        reference.histories[index] = tokens[: len(tokens) // 2]
        driver.compare([slot])
        reference.histories[index] = tokens
        driver.compare([slot])
    driver.close(slot)
    return driver.report()


def capped() -> dict[str, Any]:
    """A pool of a few pages: who outgrows it gets no more drafts, the others do, and the pages come back."""
    rng = np.random.default_rng(5)
    driver = Driver(max_bytes=8 * AUTOMATON.PAGE_BYTES)
    small, large = driver.open(), driver.open()
    driver.step({small: rng.integers(0, 3, 200).tolist()})
    pool, rows, one = driver.pool, rng.integers(0, 2, (1, 4000)).astype(np.int32), np.ones(1, np.int32)
    told = [int(pool.propose(one * large, rows, one * 0, one * n, one)[0, -1]) for n in (500, 600, 3900, 3950, 4000)]
    state = [pool.is_capped(large), pool.is_capped(small), pool.num_capped, pool.match_length(large)]
    driver.step({small: rng.integers(0, 3, 50).tolist()})
    refused = pool.sync(large, rows[0])
    used = [pool.used_bytes()]
    driver.close(large)
    again = driver.open()
    for part in in_parts(rng, streams(rng)["source"]):
        driver.step({again: part})
    driver.close(again)
    driver.close(small)
    return driver.report(told=told, state=state, refused=refused, small=used[0], group=capped_group())


def capped_group() -> list[Any]:
    """A group that outgrows the pool in the middle of a call: no member is served from what was given back."""
    pool = AUTOMATON.SuffixAutomatonPool(DRAFTS, 1, 4 * AUTOMATON.PAGE_BYTES)
    rows = np.random.default_rng(6).integers(0, 2, (3, 4000)).astype(np.int32)
    slots = np.array([pool.open("prompt"), pool.open("prompt"), pool.open()], np.int32)
    every, limits = np.arange(3, dtype=np.int32), np.full(3, DRAFTS, np.int32)
    before = pool.propose(slots, rows, every, np.array([100, 50, 60], np.int32), limits)[:, -1]
    counts = pool.propose(slots, rows, every, np.array([120, 3000, 70], np.int32), limits)[:, -1]
    after = pool.propose(slots, rows, every, np.array([130, 3100, 80], np.int32), limits)[:, -1]
    for slot in slots:
        pool.close(int(slot))
    return [before.tolist(), counts.tolist(), after.tolist(), pool.num_capped, pool.used_bytes()]


def grouped() -> dict[str, Any]:
    """Samples of one prompt in one automaton: they come late, leave early, are preempted and go another way."""
    rng = np.random.default_rng(7)
    driver = Driver()
    longest = 0
    for trial in range(6):
        symbols = int(rng.choice([2, 3, 30]))
        prompt = rng.integers(0, symbols, 20).tolist()
        shared = Searched()
        members: list[int] = []
        for _ in range(60):
            if len(members) < 5 and rng.random() < 0.3:
                members.append(driver.open(shared, f"group {trial}"))
                driver.step({members[-1]: prompt[: int(rng.choice([20, 20, 8]))]})
            some = {slot: new_tokens(rng, driver, slot, symbols) for slot in members if rng.random() < 0.7}
            driver.step(some)
            longest = max([longest, *map(driver.pool.match_length, members)])
            if members and rng.random() < 0.1:
                anew(rng, driver, members[0], shared)
            if len(members) > 1 and rng.random() < 0.1:
                driver.close(members.pop())
        for slot in members:
            driver.close(slot)
    return driver.report(longest=longest)


def new_tokens(rng: np.random.Generator, driver: Driver, slot: int, symbols: int) -> list[int]:
    """What another member went on with, as samples of a prompt do, or something of its own."""
    others = driver.at[slot][0].histories
    other, at = others[int(rng.integers(len(others)))], len(driver.history(slot))
    if rng.random() < 0.6 and len(other) > at:
        return other[at : at + int(rng.integers(1, 4))].tolist()
    return rng.integers(0, symbols, int(rng.integers(1, 4))).tolist()


def anew(rng: np.random.Generator, driver: Driver, slot: int, shared: Searched) -> None:
    """The member's history becomes another one; what it had stays in the group."""
    tokens = np.concatenate([driver.history(slot)[:25], rng.integers(0, 3, 10)]).astype(np.int32)
    driver.at[slot] = (shared, shared.add())
    shared.extend(driver.at[slot][1], tokens)
    driver.rows[slot, : len(tokens)] = tokens
    driver.pool.sync(slot, tokens)
    driver.compare([slot])


def size() -> dict[str, Any]:
    """Bytes a token of long histories, and the time of the one that is worst for the number of suffixes."""
    rng = np.random.default_rng(8)
    n = 16000
    long = {
        "source": (source_tokens(1 << 20) * 3)[:n],
        "random 2": rng.integers(0, 2, n).tolist(),
        "random 1000": rng.integers(0, 1000, n).tolist(),
        "most states and edges": [0] + [1] * (n - 2) + [2],
    }
    found = {}
    for name, stream in long.items():
        pool = AUTOMATON.SuffixAutomatonPool(DRAFTS, 1, 1 << 24)
        pool.sync(pool.open(), np.array(stream, np.int32))
        found[name] = pool.used_bytes() / len(stream)
    pool = AUTOMATON.SuffixAutomatonPool(DRAFTS, 1, 1 << 25)
    start = time.process_time()
    pool.sync(pool.open(), np.zeros(60_000, np.int32))
    return found | {"seconds": time.process_time() - start}


def group_size() -> list[int]:
    """Bytes of eight samples with a prompt of 4,000 tokens: each alone, and as a group."""
    rng = np.random.default_rng(9)
    prompt = rng.integers(0, 500, 4000)
    samples = [np.concatenate([prompt, rng.integers(0, 500, 100)]).astype(np.int32) for _ in range(8)]
    used = []
    for group in (None, "prompt"):
        pool = AUTOMATON.SuffixAutomatonPool(DRAFTS)
        for sample in samples:
            pool.sync(pool.open(group), sample)
        used.append(pool.used_bytes())
    return used


class Counted:
    """The pool's memory, which counts how often an element is read."""

    def __init__(self, memory: np.ndarray) -> None:
        self.memory, self.reads = memory, 0

    def __getitem__(self, at: int) -> int:
        self.reads += 1
        return int(self.memory[at])


def reads() -> dict[str, Any]:
    """The most reads that one token's place takes at a root that has an edge for each of 1,024 tokens, by kind of token.

    Tokens of 18 bits, as those of vocabularies of 152,000. All of a kind share their 9 lowest bits, or their highest.
    """
    kernels = sys.modules["vllm_ascend.spec_decode.suffix_automaton_kernels"]
    find = kernels.place.py_func  # what is compiled, as Python: the same reads, one at a time
    kinds = {
        "same low bits": np.arange(512) << 9,
        "other low bits": (np.arange(512) << 9) + 257,
        "same high bits": np.arange(512) + (255 << 9),
        "random": np.random.default_rng(10).choice(1 << 18, 512, replace=False),
    }
    found: dict[str, Any] = {"missing": 0}
    for kind, tokens in kinds.items():
        pool = AUTOMATON.SuffixAutomatonPool(DRAFTS, 1, 1 << 24)
        slot = pool.open()
        pool.sync(slot, np.concatenate([tokens, tokens[::-1]]).astype(np.int32))
        root = int(pool._trees[pool._slots[slot, kernels.TREE], kernels.ROOT])
        counts = []
        for token in tokens.tolist():
            memory = Counted(pool._memory)
            edge = pool._memory[find(memory, root, token)]
            # The edge taken last is in the state itself, and in the tree only if another was taken after it.
            there = edge and pool._memory[edge + kernels.EDGE_TOKEN] == token
            found["missing"] += not (there or pool._memory[root + kernels.TOKEN] == token)
            counts.append(memory.reads)
        found[kind] = max(counts)
    return found


def misuse() -> dict[str, str]:
    wrong: list[dict[str, int]] = [
        {"num_draft_tokens": 0},
        {"min_match_length": 0},
        {"drafts_per_match": -1},
        {"num_slots": 0},
        {"max_bytes": 100},
        {"max_bytes": 1 << 33},
    ]
    said = {}
    for change in wrong:
        try:
            AUTOMATON.SuffixAutomatonPool(**({"num_draft_tokens": 3, "max_bytes": 1 << 20} | change))
        except ValueError as error:
            said[str(change)] = str(error)
    return said


CASES = [single, settings, together, synced, capped, grouped, size, group_size, reads, misuse]

if __name__ == "__main__":
    results = {case.__name__: case() for case in CASES}
    print(json.dumps(results | {"imported": sorted({"torch", "vllm"} & set(sys.modules))}))
