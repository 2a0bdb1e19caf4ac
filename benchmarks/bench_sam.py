#!/usr/bin/env python3
"""What sam_proposer's tables and automata cost and how many of their drafts are accepted, against vllm's own drafters.

    PATCHCTL_TORCH_PYTHON=... benchmarks/bench_sam.py --trees build/trees/RELEASE/patched [--arctic DIR]

In one run, by turns: the tables of hashed contexts and the suffix automaton (vllm_ascend.spec_decode.context_tables,
suffix_automaton), vllm's n-gram proposer and vllm's suffix proposer, which needs arctic-inference (DIR holds an installed
copy; without it its columns say so). Times are CPU time, those of
a step alone without the clock's own. Streams: sam_streams.py, and `unseen` here.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from in_torch import run_in_torch
from markers import write_between_markers

SCRIPT = Path(__file__).resolve()
ROOT = SCRIPT.parent.parent
TESTS = next(ROOT.glob("patches/vllm-ascend/*/sam_proposer/tests/automaton_reference.py")).parent
CONTEXTS, BATCHES, STEPS = (1024, 8192, 32768), (1, 64, 256), 20
DRAFTS = 3  # the practice's number; acceptance is shown for MANY as well
MANY = 8
LIMITS = (1, 2, 3, 4)  # drafts a matched token; without one by default
PROMPT_SHARE = 10  # of a stream, its first tenth is the prompt
TIMED = ("code", "code 32K", "prose")  # streams
UNTUNED = {  # streams by which nothing was ever chosen, and what they are
    "JSON logs": "lines of a service's log, made by rule",
    "library packages": "Python's standard library, its packages",
    "Chinese": "docs/zh-CN",
    "reasoning": "multiplications thought through and checked again, made by rule",
}
SEEN_BEFORE = 24  # tokens of context that suffix decoding looks at: vllm's default
SEARCHED, BELOW = 8192, "(streams below 8 K)"  # a search of every position takes too long for longer ones
SUFFIX_LIMIT = 64 * 32768  # tokens; suffix decoding's trees of more would not fit into this machine's memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=Path, required=True, help="patched trees: vllm-ascend, vllm")
    parser.add_argument("--arctic", type=Path, help="a folder that holds arctic_inference; without it that is left out")
    parser.add_argument("--out", type=Path, help="a page to write the tables to, between its markers")
    parser.add_argument("--in-torch", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.in_torch:
        print(json.dumps(measure(args.trees)))
        return
    found = tables(run_with_torch(args.trees.resolve(), args.arctic))
    print(found)
    if args.out:
        write_between_markers(args.out, "bench-sam", found + "\n")


def run_with_torch(trees: Path, arctic: Path | None, script: Path = SCRIPT) -> Any:
    """Runs this script, or another, under the interpreter that has torch and numba."""
    path = [trees / "vllm-ascend", trees / "vllm", TESTS, *([arctic.resolve()] if arctic else [])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path)), "VLLM_LOGGING_LEVEL": "ERROR"}
    environment |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    return run_in_torch([script, "--trees", trees, "--in-torch"], environment)


def measure(trees: Path) -> dict:
    import numpy as np
    import sam_streams

    samples = sam_streams.sampled()
    streams = sam_streams.recorded(trees)
    text = np.concatenate([one for name in TIMED for one in streams[name]])
    streams["small model"] = [one for prompt in samples for one in prompt[:4]]
    streams |= unseen()
    return {
        "speed": [speed(text, context, batch) for context in CONTEXTS for batch in BATCHES],
        "streams": {name: [len(some), sum(map(len, some))] for name, some in streams.items()},
        "accepted": {name: acceptance(some, searched=name not in UNTUNED) for name, some in streams.items()},
        "group": in_groups(samples),
        "whole": whole_calls(text, CONTEXTS[-1], BATCHES[-1]),
        "arctic": suffix_cache() is not None,
    }


class Tables:
    """Ours. Like every drafter here: `step` is told all histories and returns a list of drafts for each."""

    def __init__(self, batch: int, drafts: int, width: int, group: object = None, **settings: int) -> None:
        from automaton_reference import load_automaton

        self.module = load_automaton()
        self.pool = self.made(drafts, width, {"max_bytes": 7 << 30, "num_slots": batch} | settings)
        self.pool.warm_up()
        import numpy as np

        self.slots = np.array([self.pool.open(group) for _ in range(batch)], np.int32)
        self.rows, self.limits = np.arange(batch, dtype=np.int32), np.full(batch, drafts, np.int32)

    def made(self, drafts: int, width: int, settings: dict) -> Any:
        return import_module("vllm_ascend.spec_decode.context_tables").ContextTables(drafts, width, **settings)

    def step(self, token_ids, lengths, new) -> list[list[int]]:
        return self.module.as_lists(self.pool.propose(self.slots, token_ids, self.rows, lengths, self.limits))


class Automaton(Tables):
    """Ours too."""

    def made(self, drafts: int, width: int, settings: dict) -> Any:
        return self.module.SuffixAutomatonPool(drafts, **settings)


class NGram:
    """vllm's n-gram proposer, with the shortest and longest match given."""

    def __init__(self, batch: int, drafts: int, shortest: int, longest: int, width: int) -> None:
        from vllm.v1.spec_decode.ngram_proposer import NgramProposer

        self.proposer = NgramProposer(
            SimpleNamespace(
                speculative_config=SimpleNamespace(
                    prompt_lookup_min=shortest, prompt_lookup_max=longest, num_speculative_tokens=drafts
                ),
                model_config=SimpleNamespace(max_model_len=width),
                scheduler_config=SimpleNamespace(max_num_seqs=max(batch, 1024)),
                parallel_config=SimpleNamespace(tensor_parallel_size=1),
            )
        )
        self.requests = list(range(batch))

    def step(self, token_ids, lengths, new) -> list[list[int]]:
        return self.proposer.batch_propose(len(self.requests), self.requests, lengths, token_ids)


class Suffix:
    """vllm's suffix proposer; `shared` is how many responses its global cache holds (vllm's default: 10,000)."""

    def __init__(self, batch: int, drafts: int, width: int, shared: int = 0) -> None:
        from vllm.v1.spec_decode.suffix_decoding import SuffixDecodingProposer

        self.proposer = SuffixDecodingProposer(
            SimpleNamespace(
                speculative_config=SimpleNamespace(
                    num_speculative_tokens=drafts,
                    suffix_decoding_max_tree_depth=SEEN_BEFORE,
                    suffix_decoding_max_spec_factor=1.0,
                    suffix_decoding_min_token_prob=0.1,
                    suffix_decoding_max_cached_requests=shared,
                ),
                model_config=SimpleNamespace(max_model_len=width),
            )
        )
        self.names = [str(i) for i in range(batch)]

    def step(self, token_ids, lengths, new) -> list[list[int]]:
        batch = SimpleNamespace(
            req_ids=self.names,
            req_id_to_index={name: i for i, name in enumerate(self.names)},
            num_tokens_no_spec=lengths,
            num_prompt_tokens=lengths - [len(some) for some in new],
            token_ids_cpu=token_ids,
        )
        return self.proposer.propose(batch, new)


def unseen() -> dict:
    """The Fibonacci word, whose matches are longer than any context; then two streams on which nothing was ever chosen."""
    import numpy as np
    import sam_streams
    from automaton_reference import fibonacci

    order = random.Random(5)
    problems = ["".join(sam_streams.worked_problem(order) for _ in range(16)) for _ in range(4)]
    headers = sorted(Path(sysconfig.get_path("include")).glob("*.h"), key=lambda file: file.stat().st_size)[-8:]
    words = [re.findall(r"\w+|[^\w\s]|\n *", file.read_text(encoding="utf-8")) for file in headers]
    word = "".join("ab"[one] for one in fibonacci(8000))
    numbers: dict[str, int] = {}
    as_tokens: dict[str, Sequence[Sequence[str]]] = {
        "Fibonacci word": [word],
        "problems, characters": problems,
        "C headers, words": words,
    }
    return {
        name: [np.array([numbers.setdefault(token, len(numbers)) for token in one], np.int32) for one in some]
        for name, some in as_tokens.items()
    }


def suffix_cache():
    """arctic-inference's cache, None where it is not installed."""
    try:
        from arctic_inference.suffix_decoding import SuffixDecodingCache
    except ImportError:
        return None
    return SuffixDecodingCache


class Chosen:
    """The longest match found by comparing all places, following one occurrence of it: which one is the question."""

    def __init__(self, drafts: int, choice: str) -> None:
        self.drafts, self.choice, self.known = drafts, choice, 0

    def step(self, token_ids, lengths, new) -> list[list[int]]:
        import numpy as np

        history = token_ids[0, : lengths[0]]
        if self.known == 0:
            self.common = np.zeros(token_ids.shape[1], np.int64)
        for at in range(self.known, len(history)):
            same = history[:at] == history[at]
            self.common[1 : at + 1] = np.where(same, self.common[:at] + 1, 0)
        self.known = len(history)
        common = self.common[: len(history)]
        longest = common.max(initial=0)
        if longest == 0:
            return [[]]
        at = self.chosen(np.flatnonzero(common == longest), history)
        return [history[at : at + self.drafts].tolist()]

    def chosen(self, places, history) -> int:
        import numpy as np

        if self.choice == "most frequent":
            tokens, counts = np.unique(history[places], return_counts=True)
            places = places[history[places] == tokens[counts.argmax()]]
        return int(places[0] if self.choice == "first" else places[-1])


def drafters(drafts: int, width: int) -> dict:
    """By name: a drafter for one request."""
    found = {
        "tables": lambda: Tables(1, drafts, width),
        **{
            f"tables, at most {limit} a matched token": partial(Tables, 1, drafts, width, drafts_per_match=limit)
            for limit in LIMITS
            if limit < drafts
        },
        "automaton": lambda: Automaton(1, drafts, width),
        "n-gram 1 to 5": lambda: NGram(1, drafts, 1, 5, width),
        "n-gram 2 to 5": lambda: NGram(1, drafts, 2, 5, width),
    }
    if suffix_cache():
        found["suffix decoding"] = lambda: Suffix(1, drafts, width)
    if drafts == DRAFTS:
        choices = ("first", "most frequent", "latest")
        found |= {f"{BELOW} search, {choice}": partial(Chosen, drafts, choice) for choice in choices}
        found[f"{BELOW} automaton"] = found["automaton"]
    return found


def acceptance(streams, searched: bool) -> dict:
    """Tokens a step, and accepted drafts of those made, by number of drafts and drafter, over all streams."""
    width = max(map(len, streams)) + 1
    found: dict = {}
    for drafts in (DRAFTS, MANY):
        for name, make in drafters(drafts, width).items():
            some = streams
            if name.startswith(BELOW):
                some = [one for one in streams if searched and len(one) < SEARCHED]
            if some:
                found[f"{drafts} {name}"] = rates([replay(make(), [one], [len(one) // PROMPT_SHARE]) for one in some])
    return found


def replay(drafter, streams, prompts) -> tuple[int, int, int]:
    """Goes through the streams as greedy verification does, all a step at a time: steps, drafts made and accepted."""
    import numpy as np

    token_ids = np.zeros((len(streams), max(map(len, streams))), np.int32)
    for row, stream in zip(token_ids, streams, strict=True):
        row[: len(stream)] = stream
    ends = np.array([len(one) for one in streams])
    lengths = np.array(prompts, np.int32) + 1
    new = [[int(row[at - 1])] for row, at in zip(token_ids, lengths, strict=True)]
    steps = made = accepted = 0
    while (lengths < ends).any():
        drafted = drafter.step(token_ids, lengths, new)
        for i in np.flatnonzero(lengths < ends):
            some, row = drafted[i][: ends[i] - lengths[i] - 1], token_ids[i]
            right = prefix(some, row[lengths[i] :])
            steps, made, accepted = steps + 1, made + len(some), accepted + right
            new[i] = row[lengths[i] : lengths[i] + right + 1].tolist()
            lengths[i] += right + 1
        new = [some if length < end else [] for some, length, end in zip(new, lengths, ends, strict=True)]
    return steps, made, accepted


def prefix(drafted, tokens) -> int:
    """How many drafts are right."""
    right = 0
    while right < len(drafted) and drafted[right] == tokens[right]:
        right += 1
    return right


def rates(runs) -> list[float]:
    steps, made, accepted = map(sum, zip(*runs, strict=True))
    return [1 + accepted / steps, accepted / max(made, 1)]


def in_groups(samples) -> dict:
    """The samples of a prompt generated side by side: each alone, and sharing what they have generated."""
    width = max(len(one) for prompt in samples for one in prompt) + 1
    count = len(samples[0])
    prompt_length = min(prefix(one, samples[0][0]) for one in samples[0][1:])
    makers: dict[str, Callable[[], Any]] = {
        "tables, each alone": lambda: Tables(count, DRAFTS, width),
        "automaton, each alone": lambda: Automaton(count, DRAFTS, width),
        "automaton, a group": lambda: Automaton(count, DRAFTS, width, group="prompt"),
    }
    if suffix_cache():
        makers["suffix decoding, each alone"] = lambda: Suffix(count, DRAFTS, width)
        makers["suffix decoding, shared responses"] = lambda: Suffix(count, DRAFTS, width, 10_000)
    found = {}
    for name, make in makers.items():
        runs, used = [], []
        for prompt in samples:
            drafter = make()
            runs.append(replay(drafter, prompt, [min(prompt_length, len(one) // 2) for one in prompt]))
            if isinstance(drafter, Tables):
                used.append(drafter.pool.used_bytes() / sum(map(len, prompt)))
        found[name] = [*rates(runs), sum(used) / len(used) if used else None]
    return found | {"samples": [len(samples), count, prompt_length]}


def speed(text, context: int, batch: int) -> dict:
    """Microseconds a request and step, and bytes a token, for histories from `context` tokens on."""
    import numpy as np

    width = context + (DRAFTS + 1) * STEPS + 8
    starts = np.random.default_rng(0).integers(0, len(text) - width, batch)
    token_ids = np.stack([text[start : start + width] for start in starts])
    found: dict = {"context": context, "batch": batch}
    makers: dict[str, Callable[[], Any]] = {
        "tables": lambda: Tables(batch, DRAFTS, width),
        "automaton": lambda: Automaton(batch, DRAFTS, width),
        "n-gram": lambda: NGram(batch, DRAFTS, 2, 5, width),
    }
    if suffix_cache() and context * batch <= SUFFIX_LIMIT:
        makers["suffix decoding"] = lambda: Suffix(batch, DRAFTS, width)
    for name, make in makers.items():
        drafter = make()
        times = stepped(drafter, token_ids, context)
        print(f"{name}, {context} tokens, {batch} requests: {min(times) * 1e6:.0f} us", file=sys.stderr, flush=True)
        found[name] = {"least": min(times) / batch * 1e6, "median": sorted(times)[len(times) // 2] / batch * 1e6}
        if isinstance(drafter, Tables):
            found[name]["bytes"] = drafter.pool.used_bytes() / (batch * (context + STEPS))
    return found


def stepped(drafter, token_ids, context: int) -> list[float]:
    """Seconds of this thread in each step; the first, which takes the prompts in, is not among them."""
    import numpy as np

    # Asking the clock is a call of the kernel, half a microsecond.
    clock = min(-time.thread_time() + time.thread_time() for _ in range(1000))
    batch = len(token_ids)
    lengths = np.full(batch, context, np.int32)
    new = [[int(row[context - 1])] for row in token_ids]
    times = []
    for _ in range(STEPS):
        start = time.thread_time()
        drafted = drafter.step(token_ids, lengths, new)
        times.append(time.thread_time() - start - clock)
        for i, row in enumerate(token_ids):
            right = prefix(drafted[i], row[lengths[i] :])
            new[i] = row[lengths[i] : lengths[i] + right + 1].tolist()
            lengths[i] += right + 1
    return times[1:]


def whole_calls(text, context: int, batch: int) -> dict:
    """Milliseconds of CPU, fastest and median, of the runner's whole call of a proposer, by turns and each alone.

    By turns each finds the caches as the others left them, and n-gram reads every history; alone, as it left them itself.
    """
    import numpy as np

    width = context + (DRAFTS + 1) * STEPS + 8
    starts = np.random.default_rng(0).integers(0, len(text) - width, batch)
    streams = np.stack([text[start : start + width] for start in starts])
    found = {}
    for order in ("by turns", "each alone"):
        calls = {name: Whole(name, streams, context) for name in ("sam", "sam with automata", "ngram")}
        if order == "by turns":
            steps = [[call.step() for call in calls.values()] for _ in range(STEPS)]
        else:
            each = [[call.step() for _ in range(STEPS)] for call in calls.values()]
            steps = [list(some) for some in zip(*each, strict=True)]
        times = [sorted(some) for some in zip(*steps[1:], strict=True)]
        found[order] = {
            name: [some[0] * 1000, some[len(some) // 2] * 1000] for name, some in zip(calls, times, strict=True)
        }
    return found


class Whole:
    """vllm-ascend's proposer of this name with what it reads of a runner: a batch of requests that stays the same."""

    def __init__(self, name: str, streams, context: int) -> None:
        import numpy as np
        from automaton_reference import load_automaton

        load_automaton()  # so that vllm_ascend's own `__init__` does not run
        from vllm_ascend.spec_decode import ngram_proposer, sam_proposer

        batch, width = streams.shape
        self.streams, self.lengths = streams, np.full(batch, context, np.int32)
        self.batch = SimpleNamespace(
            req_ids=[str(i) for i in range(batch)],
            token_ids_cpu=streams.copy(),
            num_tokens_no_spec=self.lengths,
            spec_decode_unsupported_reqs=set(),
            max_model_len=width,
        )
        request = {"prompt_token_ids": [0], "mm_features": [], "lora_request": None}
        runner = SimpleNamespace(
            input_batch=self.batch, requests={name: SimpleNamespace(**request) for name in self.batch.req_ids}
        )
        speculative = {"num_speculative_tokens": DRAFTS, "prompt_lookup_min": 2, "prompt_lookup_max": 5}
        speculative |= {"sam_min_match_length": 1, "sam_max_drafts_per_match": 0, "sam_max_memory_mb": 1024}
        config = SimpleNamespace(
            speculative_config=SimpleNamespace(**speculative, sam_share_in_group=False),
            model_config=SimpleNamespace(max_model_len=width),
            scheduler_config=SimpleNamespace(max_num_seqs=max(batch, 1024)),
            parallel_config=SimpleNamespace(tensor_parallel_size=1),
        )
        sam_proposer.LEARNT_A_STEP = batch * width  # a run has learnt its histories as they came
        makers = {"sam": sam_proposer.SamProposer, "ngram": ngram_proposer.NgramProposer}
        self.proposer = makers[name.partition(" ")[0]](config, None, runner)
        if name == "sam with automata":
            self.proposer.pool = sam_proposer.SuffixAutomatonPool(DRAFTS, max_bytes=7 << 30, num_slots=batch)
        self.new = [[int(row[context - 1])] for row in streams]

    def step(self) -> float:
        """Seconds of this thread; afterwards every request has what was accepted, and a token."""
        start = time.thread_time()
        drafted = self.proposer.generate_token_ids(self.new)
        seconds = time.thread_time() - start
        for i, row in enumerate(self.streams):
            here = self.lengths[i]
            right = prefix(drafted[i], row[here:])
            self.new[i] = row[here : here + right + 1].tolist()
            self.batch.token_ids_cpu[i, here : here + DRAFTS + 1] = row[here : here + DRAFTS + 1]  # n-gram writes there
            self.lengths[i] += right + 1
        return seconds


def tables(found: dict) -> str:
    missing = "" if found["arctic"] else " arctic-inference is not installed: suffix decoding is left out."
    head = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
    head += f"load {os.getloadavg()[0]:.1f} at the end.{missing}"
    return "\n\n".join(
        [
            head,
            speed_table(found["speed"]),
            whole_line(found["whole"]),
            accepted_table(found),
            group_table(found["group"]),
        ]
    )


def speed_table(rows) -> str:
    lines = [
        f"Microseconds of CPU a request and step, fastest (median) of {STEPS - 1} steps, {DRAFTS} drafts, on code and prose:",
        "",
        "| context | batch | tables | a step | automaton | ratio | n-gram | ratio | suffix decoding | ratio | bytes a token, tables | automaton |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        ours, others = row["tables"], [row.get(name) for name in ("automaton", "n-gram", "suffix decoding")]
        cells = [f"{row['context']:,}", str(row["batch"]), shown(ours), f"{ours['least'] * row['batch'] / 1000:.3f} ms"]
        for other in others:
            cells += [shown(other), f"**{other['least'] / ours['least']:.1f}**"] if other else ["not run", ""]
        lines.append(f"| {' | '.join(cells)} | {ours['bytes']:.1f} | {row['automaton']['bytes']:.1f} |")
    return "\n".join(lines)


def whole_line(found: dict) -> str:
    said = [
        f"The whole `generate_token_ids`, {BATCHES[-1]} requests of {CONTEXTS[-1]:,} tokens, milliseconds of CPU of the fastest (median) step:"
    ]
    for order, times in found.items():
        cells = [f"{name} {least:.3f} ({median:.3f})" for name, (least, median) in times.items()]
        said.append(f"{order} {', '.join(cells)}, ratio to ngram **{times['ngram'][0] / times['sam'][0]:.1f}**;")
    return " ".join(said).removesuffix(";") + "."


def shown(times) -> str:
    return f"{times['least']:.2f} ({times['median']:.2f})"


def accepted_table(found: dict) -> str:
    names = list(found["accepted"])
    counts = ", ".join(
        f"{name}{f' ({UNTUNED[name]})' if name in UNTUNED else ''} {some} of {tokens:,} tokens"
        for name, (some, tokens) in found["streams"].items()
    )
    lines = [f"Tokens a step with greedy verification (and accepted of the drafts made). Streams: {counts}.", ""]
    lines += ["| drafts | | " + " | ".join(names) + " |", "|---|---|" + "---|" * len(names)]
    for key in found["accepted"][names[0]]:
        drafts, _, name = key.partition(" ")
        cells = [found["accepted"][stream].get(key) for stream in names]
        values = " | ".join(f"{cell[0]:.3f} ({cell[1]:.0%})" if cell else "not run" for cell in cells)
        lines.append(f"| {drafts} | {name} | {values} |")
    return "\n".join(lines)


def group_table(group: dict) -> str:
    prompts, samples, length = group.pop("samples")
    lines = [
        f"The small model's samples, {samples} of each of {prompts} prompts of {length} tokens, side by side, {DRAFTS} drafts:",
        "",
        "| | tokens a step | accepted of the drafts made | bytes a token |",
        "|---|---|---|---|",
    ]
    for name, (tokens, share, used) in group.items():
        lines.append(f"| {name} | {tokens:.3f} | {share:.0%} | {f'{used:.1f}' if used else ''} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
