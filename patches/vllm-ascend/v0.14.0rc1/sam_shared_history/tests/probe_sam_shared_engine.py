"""Probe: vllm engines with NPUModelRunner: without speculation, with sam, and with sam and one history for all requests.

Usage: probe_sam_shared_engine.py MODEL CASE..., or MODEL config JSON... Each case is a process of its own, forked after the
imports, with one engine. The KV cache is too small for the requests that run together, so that some are preempted. A case
that fails prints its error. `config` makes configurations only, each with this sam_shared_history and options of EngineArgs.
"""

import json
import os
import sys
import traceback
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import npu_engine

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine stays in this process, which is prepared
npu_engine.prepare()

from safetensors.torch import load_file  # noqa: E402
from vllm import LLM, SamplingParams  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm_ascend.ascend_config import clear_ascend_config  # noqa: E402

MODEL, *CASES = sys.argv[1:]
SAM = {"method": "sam", "num_speculative_tokens": 3}
HISTORY = {"sam_shared_history": {"max_memory_mb": 8, "updates": 1}}
PAUSES = {"spec_batch_threshold": {"upper": 1, "lower": 1}}
LONG = [7 + (i * i) % 89 for i in range(150)]
PROMPTS = [
    [10, 11, 12, 13, 14, 10, 11, 12],
    [20, 21, 22, 23, 24, 25],
    [30, 31, 32] * 30,
    LONG,
    [40],
    [50 + i % 7 for i in range(90)],
]
LENGTHS = [90, 60, 80, 50, 120, 100]
OTHERS = [[60 + i, 61, 62] for i in range(3)]


class Engine:
    """One engine, and what its scheduler and its drafter say of each load."""

    def __init__(self, speculative=None, rows=4, blocks=6, **additional):
        self.llm = LLM(
            model=MODEL,
            dtype="float32",
            max_model_len=256,
            max_num_seqs=rows,
            max_num_batched_tokens=64,
            num_gpu_blocks_override=blocks,
            enforce_eager=True,
            speculative_config=speculative,
            additional_config=additional,
        )
        self.core = self.llm.llm_engine.engine_core.engine_core
        self.runner = self.core.model_executor.driver_worker.model_runner
        self.shared = getattr(self.runner.drafter, "shared", None)
        self.seen, self.added = {}, []
        take = self.core.scheduler.update_from_output

        def observed(scheduled, output):
            drafted = scheduled.scheduled_spec_decode_tokens
            for request in drafted:
                self.seen["accepted"] += len(output.sampled_token_ids[output.req_id_to_index[request]]) - 1
            self.seen["steps"] += 1
            self.seen["drafted"] += sum(map(len, drafted.values()))
            self.seen["preempted"] += len(scheduled.preempted_req_ids or ())
            return take(scheduled, output)

        self.core.scheduler.update_from_output = observed
        if self.shared:
            add = self.shared.add
            self.shared.add = lambda tokens, adapter: self.added.append(list(tokens)) or add(tokens, adapter)

    def answers(self, prompts, lengths):
        self.seen = dict.fromkeys(("steps", "drafted", "accepted", "preempted"), 0)
        params = [SamplingParams(temperature=0, max_tokens=length, ignore_eos=True) for length in lengths]
        outputs = self.llm.generate([{"prompt_token_ids": one} for one in prompts], params, use_tqdm=False)
        tokens = [list(output.outputs[0].token_ids) for output in outputs]
        self.core.step()  # tells of the last ones that have ended
        return self.seen | {"tokens": tokens}

    def update(self):
        """As verl does: the model's own load_weights, here with the weights that it has."""
        self.runner.model.load_weights(load_file(Path(MODEL) / "model.safetensors").items())


def beyond(engine, answers):
    """For each prompt of those that were added with its answer how many tokens they had more."""
    whole = [prompt + tokens for prompt, tokens in zip(PROMPTS, answers["tokens"], strict=True)]
    return [[len(one) - len(answer) for one in engine.added if one[: len(answer)] == answer] for answer in whole]


def imported():
    return sorted(name for name in sys.modules if "shared" in name and name.startswith("vllm_ascend.spec_decode"))


def plain():
    engine = Engine(rows=8, blocks=24)
    return engine.answers(PROMPTS, LENGTHS) | {
        "others": engine.answers(OTHERS, [40] * 3)["tokens"],
        "imported": imported(),
    }


def sam():
    engine = Engine(SAM)
    first = engine.answers(PROMPTS, LENGTHS)
    return {"first": first, "again": engine.answers(PROMPTS, LENGTHS), "imported": imported(), "kind": kind(engine)}


def shared():
    """All prompts twice, after an update, and after a second one; in between others, which end in the newer generation."""
    engine = Engine(SAM, **HISTORY)
    seen = {"kind": kind(engine), "first": engine.answers(PROMPTS, LENGTHS)}
    seen["beyond"] = beyond(engine, seen["first"])
    seen["again"] = engine.answers(PROMPTS, LENGTHS)
    engine.update()
    seen["others"] = engine.answers(OTHERS, [40] * 3)
    used = engine.shared.used_bytes()
    engine.update()
    seen["bytes"] = [used, engine.shared.used_bytes()]
    seen["updated"] = engine.answers(PROMPTS, LENGTHS)
    return seen


def updated():
    """What ended before one update still serves."""
    engine = Engine(SAM, **HISTORY)
    engine.answers(PROMPTS, LENGTHS)
    engine.update()
    return engine.answers(PROMPTS, LENGTHS)


def paused():
    """Of what runs beside another nothing is drafted; it is known all the same, and the last one drafts from it."""
    engine = Engine(SAM, **HISTORY, **PAUSES)
    first = engine.answers(PROMPTS, LENGTHS)
    return {"first": first, "beyond": beyond(engine, first), "alone": engine.answers(PROMPTS[:1], LENGTHS[:1])}


def kind(engine):
    return type(engine.runner.drafter).__name__


def config(value, **options):
    """The error of a configuration, None if it is taken."""
    clear_ascend_config()
    try:
        EngineArgs(
            model=MODEL, dtype="float32", max_model_len=128, additional_config={"sam_shared_history": value}, **options
        ).create_engine_config()
    except ValueError as error:
        return str(error)
    return None


def run(name):
    try:
        return {case.__name__: case for case in (plain, sam, shared, updated, paused)}[name]()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}


def in_own_process(name):
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        return pool.submit(run, name).result()


if CASES[0] == "config":
    print(json.dumps([config(**json.loads(case)) for case in CASES[1:]]))
else:
    print(json.dumps({name: in_own_process(name) for name in CASES}))
