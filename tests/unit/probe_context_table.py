"""Runs context_table.py's tables over streams and compares drafts with a search of every position; prints JSON."""

import json

import context_table
import numpy as np

DRAFTS, LENGTH = 3, 4000
ONE = np.ones(1, np.int32)


def call(tables, slot, row, length):
    drafts, counts = tables.propose(ONE * slot, row[None], ONE * 0, ONE * length, ONE * DRAFTS)
    return drafts[0, : counts[0]].tolist()


def common_suffixes(history):
    """Of each place the length of its match with the end, at most 16."""
    common = np.zeros(len(history), np.int64)
    alive = np.arange(1, len(history))
    for back in range(1, min(17, len(history))):
        alive = alive[alive >= back]
        alive = alive[history[alive - back] == history[len(history) - back]]
        common[alive] = back
    return common


def follows_a_match(row, length, drafts):
    """Whether some place with a match goes on as drafted; behind the history's end the drafts themselves do."""
    common = common_suffixes(row[:length])
    going = [
        at
        for at in np.flatnonzero(common)
        if all((row[at + j] if at + j < length else drafts[at + j - length]) == d for j, d in enumerate(drafts))
    ]
    return bool(going), bool(going) and max(common[going]) == common.max()


def streams():
    order = np.random.default_rng(3)
    phrases = [order.integers(0, 500, order.integers(3, 30)) for _ in range(60)]
    text = np.concatenate([phrases[i] for i in order.integers(0, 60, 600)])[:LENGTH]
    return {"phrases": text, "one token": np.zeros(LENGTH, int), "bits": order.integers(0, 2, LENGTH)}


def main():
    found = {"bytes": {}}
    for name, stream in streams().items():
        row = stream.astype(np.int32)
        tables = context_table.ContextTables(DRAFTS, LENGTH + 1, 1 << 20, 1)
        slot = tables.open()
        seen = []
        for length in range(1, LENGTH, 2):
            drafts = call(tables, slot, row, length)
            if drafts and length % 7 == 0:
                seen.append(follows_a_match(row, length, drafts))
        found[name] = [len(seen), *(float(np.mean(some)) for some in zip(*seen, strict=True))]
        found["bytes"][name] = tables.used_bytes() / LENGTH

    row = np.array([1, 2, 3, 4, 1, 2, 0, 0], np.int32)
    tables = context_table.ContextTables(DRAFTS, 100, 1 << 20, 1)
    slot = tables.open()
    found["taken back"] = [call(tables, slot, row, 6)]
    row[4:] = 8, 9, 8, 9
    tables.take_back(slot, 4)
    found["taken back"].append(call(tables, slot, row, 8))  # 9 is known at once
    row[7] = 1
    tables.take_back(slot, 7)
    found["taken back"].append(call(tables, slot, row, 8))  # 1 was last seen where 8 stands now

    tables = context_table.ContextTables(2, 100, 4 * context_table.PAGE, 2)
    slots = [tables.open(), tables.open()]
    row = np.array([5, 6, 5, 6, 5], np.int32)
    counts = [len(call(tables, slot, row, 5)) for slot in slots]
    tables.close(slots[0])
    tables.close(slots[1])
    counts.append(len(call(tables, tables.open(), row, 5)))
    found["capped"] = counts
    tables.close(1)
    found["used"] = tables.used_bytes()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
