#!/usr/bin/env python3
"""What drafts from other samples add: those of the same prompt, and those of the epoch before a weight update.

    PATCHCTL_TORCH_PYTHON=... benchmarks/bench_drafts_from_others.py --trees build/trees/RELEASE/patched [--arctic DIR]

Small models (group_samples.py) answer some prompts, eight answers each, before and after weight updates. The later
answers are gone through as greedy verification does, all of them a step at a time, and drafted for by sam_proposer's
automata and by vllm's suffix proposer (DIR holds an installed arctic-inference), which share different histories.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import bench_sam
from bench_sam import DRAFTS, MANY
from markers import write_between_markers

MOST_BYTES = 1 << 30  # of all automata
SHARED = 10_000  # responses in suffix decoding's global tree: vllm's default
ALL, LAST = "all run", "the last of each group"
SHARES = {1: "", 2: ", of half the answers", 4: ", of a quarter"}  # by engines that divide the answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=Path, required=True, help="patched trees: vllm-ascend, vllm, verl")
    parser.add_argument("--arctic", type=Path, help="a folder that holds arctic_inference; without it that is left out")
    parser.add_argument("--out", type=Path, help="a page to write the table to, between its markers")
    parser.add_argument("--in-torch", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.in_torch:
        print(json.dumps(measure(args.trees)))
        return
    found = table(bench_sam.run_with_torch(args.trees.resolve(), args.arctic, Path(__file__).resolve()))
    print(found)
    if args.out:
        write_between_markers(args.out, "bench-drafts-from-others", found + "\n")


def measure(trees: Path) -> list[dict]:
    """A column each: subject and temperature, what was sampled, and tokens a step by row."""
    import group_samples

    return [
        {"subject": subject, "temperature": heat, **of_samples(both["before"], both["now"])}
        for subject, found in (("problems", group_samples.problems()), ("code", group_samples.code(trees)))
        for heat, both in found.items()
    ]


class Automata(bench_sam.Automaton):
    """One request each with the group's name at its place in `groups`; a group knows `before` of it already."""

    def __init__(self, drafts: int, groups: list[Hashable], before: Mapping[Hashable, list]) -> None:
        import numpy as np
        from automaton_reference import load_automaton

        self.module = load_automaton()
        self.pool = self.module.SuffixAutomatonPool(drafts, max_bytes=MOST_BYTES)
        for group, streams in before.items():
            for stream in streams:
                self.pool.sync(self.pool.open(group), stream)
        self.slots = np.array([self.pool.open(group) for group in groups], np.int32)
        self.rows, self.limits = np.arange(len(groups), dtype=np.int32), np.full(len(groups), drafts, np.int32)


class SharedHistory(Automata):
    """An automaton each, and sam_shared_history beside it: every `shares`-th request and answer has one of its own.

    `old` are in the older generation, `ended` in the present one, to which those that run are added when they end.
    """

    def __init__(self, drafts: int, count: int, shares: int, old: list, ended: list) -> None:
        super().__init__(drafts, list(range(count)), {})
        import numpy as np
        from vllm_ascend.spec_decode.suffix_shared import SharedHistory as History

        self.histories = [History(self.pool, MOST_BYTES, 1) for _ in range(shares)]
        self.known, self.ended = np.zeros(len(self.pool._slots), np.int32), np.zeros(count, bool)
        for i, slot in enumerate(self.slots):
            self.histories[i % shares].open(int(slot))
        for i, one in enumerate(old):
            self.histories[i % shares].add(one)
        for history in self.histories:
            history.weights_updated()
        for i, one in enumerate(ended):
            self.histories[i % shares].add(one)

    def step(self, token_ids, lengths, new) -> list[list[int]]:
        shares = len(self.histories)
        for i, some in enumerate(new):
            if not some and not self.ended[i]:
                self.ended[i] = True
                self.histories[i % shares].add(token_ids[i, : lengths[i]])
        found = self.pool.propose(self.slots, token_ids, self.rows, lengths, self.limits)
        for i, history in enumerate(self.histories):
            mine = slice(i, None, shares)
            rows = self.slots[mine], token_ids, self.rows[mine], lengths[mine], self.limits[mine]
            history.improve(*rows, self.known, found[mine])
        self.known[self.slots] = lengths
        return self.module.as_lists(found)


class Suffix(bench_sam.Suffix):
    """Suffix decoding whose global tree has the answers in `before` already."""

    def __init__(self, drafts: int, batch: int, width: int, prompt: int, shared: int, before: list) -> None:
        super().__init__(batch, drafts, width, shared)
        cache = self.proposer.suffix_cache
        for i, stream in enumerate(before):
            cache.start_request(f"before {i}", stream[:prompt])
            cache.add_active_response(f"before {i}", stream[prompt:])
            cache.stop_request(f"before {i}")


def of_samples(before: list, now: list) -> dict:
    """`before` and `now` are the answers to each prompt, prompt and all."""
    prompt = min(bench_sam.prefix(one, group[0]) for group in now for one in group[1:])
    found: dict = {"prompts": len(now), "samples": len(now[0]), "prompt": prompt, "rows": {}}
    for name, groups in (("now", now), ("before", before)):
        found[name] = sum(len(one) - prompt for group in groups for one in group)
    # The last of a group alone, as when drafting begins below a threshold of running requests: the others have ended.
    last = [list(map(len, group)).index(max(map(len, group))) for group in now]
    situations = {
        ALL: (now, [[] for _ in now]),
        LAST: (
            [[group[i]] for group, i in zip(now, last, strict=True)],
            [[*group[:i], *group[i + 1 :]] for group, i in zip(now, last, strict=True)],
        ),
    }
    for drafts in (DRAFTS, MANY):
        for situation, (running, ended) in situations.items():
            streams = [one for group in running for one in group]
            for name, make in drafters(drafts, running, ended, before, prompt).items():
                rates = bench_sam.rates([bench_sam.replay(make(), streams, [prompt] * len(streams))])
                found["rows"].setdefault(f"{situation} | {name}", {})[drafts] = rates
                print(drafts, situation, name, rates, file=sys.stderr, flush=True)
    return found


def drafters(drafts: int, running: list, ended: list, before: list, prompt: int) -> dict:
    """By row what makes a drafter for all that run; all three are lists by prompt. Rows of a method begin with `itself`."""
    groups = [i for i, group in enumerate(running) for _ in group]
    each = list(range(len(groups)))
    automata = partial(Automata, drafts)
    found: dict[str, Callable[[], Any]] = {
        "automaton: itself": partial(automata, each, {}),
        "automaton: group": partial(automata, groups, dict(enumerate(ended))),
        "automaton: itself and epoch before": partial(
            automata, each, {i: before[group] for i, group in enumerate(groups)}
        ),
        "automaton: itself and epoch before of another prompt": partial(
            automata, each, {i: before[group - 1] for i, group in enumerate(groups)}
        ),
        "automaton: group and epoch before": partial(
            automata, groups, {i: [*before[i], *some] for i, some in enumerate(ended)}
        ),
    }
    others, old = ([one for group in some for one in group] for some in (ended, before))
    found |= {
        "automaton: all prompts": partial(automata, [0] * len(groups), {0: others}),
        "automaton: all prompts and epoch before": partial(automata, [0] * len(groups), {0: old + others}),
    }
    for shares, name in SHARES.items():
        found[f"automaton: sam_shared_history{name}"] = partial(SharedHistory, drafts, len(groups), shares, old, others)
    if bench_sam.suffix_cache():
        width = max(len(one) for group in running for one in group) + 1
        suffix = partial(Suffix, drafts, len(groups), width, prompt)
        found |= {
            "suffix decoding: itself": partial(suffix, 0, []),
            "suffix decoding: all prompts": partial(suffix, SHARED, others),
            "suffix decoding: all prompts and epoch before": partial(suffix, SHARED, old + others),
        }
    return found


def table(columns: list[dict]) -> str:
    first = columns[0]
    tokens = ", ".join(
        f"{one['subject']} {one['temperature']}: {one['now']:,} (before {one['before']:,})" for one in columns
    )
    lines = [
        f"Tokens a step with greedy verification, {DRAFTS} and {MANY} drafts, and what is gained on `itself`. {first['samples']} answers to each of "
        f"{first['prompts']} prompts; tokens of all answers by subject and temperature: {tokens}.",
        "",
        "| | drafts from | " + " | ".join(f"{one['subject']}, {one['temperature']}" for one in columns) + " |",
        "|---|---|" + "---|" * len(columns),
    ]
    for row in first["rows"]:
        itself = row.split(":")[0] + ": itself"
        cells = [shown(one["rows"][row], one["rows"][itself]) for one in columns]
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join(lines)


def shown(row: dict, itself: dict) -> str:
    """JSON has made the numbers of drafts strings."""
    values = [
        f"{row[k][0]:.2f}" + (f" ({row[k][0] / itself[k][0] - 1:+.0%})" if row is not itself else "") for k in row
    ]
    return ", ".join(values)


if __name__ == "__main__":
    main()
