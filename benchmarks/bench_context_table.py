#!/usr/bin/env python3
"""Tables of hashed contexts (context_table.py) beside sam_proposer's suffix automaton and vllm's own drafters.

    PATCHCTL_TORCH_PYTHON=... benchmarks/bench_context_table.py --trees build/trees/patched [--arctic DIR]

CPU time, a step of each by turns in one process, so that what else the machine does meets all of them. Whole calls are
`SamProposer.generate_token_ids` with the automata or the tables in its `pool`, and vllm-ascend's n-gram proposer.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import sys
import sysconfig
import time
from pathlib import Path

import bench_sam
from bench_sam import DRAFTS, MANY, PROMPT_SHARE, STEPS

MOST_BYTES_A_TOKEN = 64
# By turns each finds the caches as the others left them, alone as it left them itself.
DRAFTING, BY_TURNS, ALONE = "drafts", "whole call", "whole call, each alone"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=Path, required=True, help="patched trees: vllm-ascend, vllm")
    parser.add_argument("--arctic", type=Path, help="a folder that holds arctic_inference; without it that is left out")
    parser.add_argument("--in-torch", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.in_torch:
        import sam_streams

        small = [one for prompt in sam_streams.sampled() for one in prompt[:4]]
        print(json.dumps(measure(sam_streams.recorded(args.trees), small)))
        return
    print(bench_sam.run_with_torch(args.trees.resolve(), args.arctic, Path(__file__).resolve()))


def measure(recorded: dict, small: list) -> str:
    """The tables in docs/benchmarks.md."""
    import numpy as np

    text = np.concatenate([one for some in recorded.values() for one in some])
    contexts, batches = bench_sam.CONTEXTS, bench_sam.BATCHES
    lines = [
        f"Milliseconds of CPU, fastest (median) step of {STEPS - 1}, {DRAFTS} drafts, on code and prose, load {os.getloadavg()[0]:.0f}:",
        "",
        "| context | batch | | automaton | tables | ratio | n-gram | tables' bytes a token |",
        "|---|---|---|---|---|---|---|---|",
        *(speed(text, context, batch, DRAFTING) for context in contexts for batch in batches),
        *(speed(text, contexts[-1], batches[-1], kind) for kind in (BY_TURNS, ALONE)),
        "",
        "Tokens a step with greedy verification (nothing was chosen on the last two streams):",
        "",
        "| stream | drafts | automaton | tables | n-gram 1 to 5 | suffix decoding |",
        "|---|---|---|---|---|---|",
    ]
    for name, streams in (recorded | {"small model": small} | others()).items():
        lines += [tokens_a_step(name, streams, drafts) for drafts in (DRAFTS, MANY)]
    return "\n".join(lines)


class Tables:
    """A drafter as bench_sam.py's."""

    def __init__(self, batch: int, drafts: int, width: int) -> None:
        import numpy as np
        from automaton_reference import load_automaton
        from context_table import ContextTables

        self.as_lists = load_automaton().as_lists
        self.pool = ContextTables(drafts, width, batch * (width + 1024) * MOST_BYTES_A_TOKEN, batch)
        self.slots = np.array([self.pool.open() for _ in range(batch)], np.int32)
        self.rows, self.limits = np.arange(batch, dtype=np.int32), np.full(batch, drafts, np.int32)

    def step(self, token_ids, lengths, new) -> list[list[int]]:
        return self.as_lists(*self.pool.propose(self.slots, token_ids, self.rows, lengths, self.limits))


def speed(text, context: int, batch: int, kind: str) -> str:
    """A row: each drafter with its lists, or the whole calls around them."""
    import numpy as np

    width = context + (DRAFTS + 1) * STEPS + 8
    starts = np.random.default_rng(0).integers(0, len(text) - width, batch)
    streams = np.stack([text[start : start + width] for start in starts])
    tables = Tables(batch, DRAFTS, width)
    if kind != DRAFTING:
        calls = {
            name: bench_sam.Whole(name.partition(" ")[0], streams, context) for name in ("sam", "sam tables", "ngram")
        }
        calls["sam tables"].proposer.pool = tables.pool
        for slot in tables.slots.tolist():
            tables.pool.close(slot)
        if kind == BY_TURNS:
            steps = [[call.step() for call in calls.values()] for _ in range(STEPS)]
        else:
            steps = list(zip(*([call.step() for _ in range(STEPS)] for call in calls.values()), strict=True))
    else:
        drafters = [bench_sam.Automaton(batch, DRAFTS), tables, bench_sam.NGram(batch, DRAFTS, 2, 5, width)]
        lengths = [np.full(batch, context, np.int32) for _ in drafters]
        steps = [
            [timed(one, streams, known) for one, known in zip(drafters, lengths, strict=True)] for _ in range(STEPS)
        ]
    times = [sorted(some) for some in zip(*steps[1:], strict=True)]
    cells = [f"{some[0] * 1000:.3f} ({some[len(some) // 2] * 1000:.3f})" for some in times]
    used = tables.pool.used_bytes() / tables.pool.known_tokens()
    print(context, batch, kind, cells, file=sys.stderr, flush=True)
    return f"| {context:,} | {batch} | {kind} | {cells[0]} | {cells[1]} | **{times[0][0] / times[1][0]:.1f}** | {cells[2]} | {used:.1f} |"


def timed(drafter, streams, lengths) -> float:
    """Seconds of this thread; afterwards every request has what was accepted, and a token."""
    start = time.thread_time()
    drafted = drafter.step(streams, lengths, None)
    seconds = time.thread_time() - start
    for i, row in enumerate(streams):
        lengths[i] += bench_sam.prefix(drafted[i], row[lengths[i] :]) + 1
    return seconds


def others() -> dict:
    """The Fibonacci word, whose matches are longer than any context; then two on which nothing was ever chosen."""
    import numpy as np
    import sam_streams

    order = random.Random(5)
    problems = ["".join(sam_streams.worked_problem(order) for _ in range(16)) for _ in range(4)]
    headers = sorted(Path(sysconfig.get_path("include")).glob("*.h"), key=lambda file: file.stat().st_size)[-8:]
    words = [re.findall(r"\w+|[^\w\s]|\n *", file.read_text(encoding="utf-8")) for file in headers]
    word, following = "a", "ab"
    while len(following) < 8000:
        word, following = following, following + word
    numbers: dict[str, int] = {}
    as_tokens = {"Fibonacci word": [following[:8000]], "problems, characters": problems, "C headers, words": words}
    return {
        name: [np.array([numbers.setdefault(token, len(numbers)) for token in one], np.int32) for one in some]
        for name, some in as_tokens.items()
    }


def tokens_a_step(name: str, streams, drafts: int) -> str:
    """A row: tokens a step of each drafter, the tables' with its difference from the automaton's."""
    width = max(map(len, streams)) + 1
    makers = {
        "automaton": lambda: bench_sam.Automaton(1, drafts),
        "tables": lambda: Tables(1, drafts, width),
        "n-gram": lambda: bench_sam.NGram(1, drafts, 1, 5, width),
    }
    if bench_sam.suffix_cache():
        makers["suffix decoding"] = lambda: bench_sam.Suffix(1, drafts, width)
    found = {
        label: bench_sam.rates([bench_sam.replay(make(), [one], [len(one) // PROMPT_SHARE]) for one in streams])[0]
        for label, make in makers.items()
    }
    cells = [f"{value:.3f}" for value in found.values()] + ["not run"] * (4 - len(found))
    cells[1] += f" ({found['tables'] / found['automaton'] - 1:+.2%})"
    print(name, drafts, cells, file=sys.stderr, flush=True)
    return f"| {name} | {drafts} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
