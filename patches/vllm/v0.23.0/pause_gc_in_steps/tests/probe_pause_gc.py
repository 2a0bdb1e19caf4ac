"""Probe: what Python's garbage collector does while a real engine runs. Usage: probe_pause_gc.py ACTION MODEL ..."""

import gc
import json
import os
import sys
import tempfile
import time
import weakref
from collections import deque

import npu_engine_0_23

npu_engine_0_23.prepare()

from vllm import LLM, SamplingParams, envs  # noqa: E402  (the platform must be prepared first)
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.utils import gc_utils  # noqa: E402

ENGINE = {
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 256,
    "enforce_eager": True,
    "gpu_memory_utilization": 0.3,
}
SWITCH = "VLLM_PAUSE_GC_IN_STEPS"
REQUESTS = 6
TOKENS = 40
FAILS_AT_STEP = 6
# Of the pause alone, without an engine: thresholds, steps, and how long an old object lives before it is garbage.
THRESHOLD, STEPS, LIFE = (700, 4, 4), 2000, 300


def engine(model):
    return LLM(model=model, tokenizer=model, worker_cls="recording_worker.RecordingWorker", **ENGINE)


def generate(llm, use_tqdm=False):
    """A new record of the collector, a run of all requests; returns their tokens."""
    llm.collective_rpc("watch_gc")
    prompts = [{"prompt_token_ids": list(range(10 + i, 18 + i))} for i in range(REQUESTS)]
    sampling = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    return [output.outputs[0].token_ids for output in llm.generate(prompts, sampling, use_tqdm=use_tqdm)]


def record(llm):
    """The record of the process that runs the steps, which is another one under multiprocessing."""
    return llm.collective_rpc("gc_log")[0] | {"enabled_after": gc.isenabled()}


def plain_run(llm):
    return {"tokens": generate(llm)} | record(llm)


def caller_has_disabled(llm):
    gc.disable()
    generate(llm)
    seen = record(llm)
    gc.enable()
    return seen


def within_another_pause(llm):
    """The engine's run inside a pause that is not its own, as when a callback of one engine's run drives another."""
    outer = getattr(gc_utils, "StepGC", None)
    if outer is None:
        return None
    outer = outer()
    outer.before_step()
    generate(llm)
    seen = record(llm)
    outer.resume()
    return seen | {"enabled_after_outer": gc.isenabled()}


class FailingBar:
    """A progress bar (generate takes any callable) that is interrupted in the caller's loop, between two steps."""

    n = 0

    def __init__(self):
        self.format_dict = {"elapsed": 1.0}

    def update(self, n):
        raise KeyboardInterrupt


def caller_is_interrupted(llm):
    # generate() also asks for a bar around the prompts that it adds; that one is left alone.
    try:
        generate(llm, use_tqdm=lambda *items, **options: items[0] if items else FailingBar())
    except KeyboardInterrupt:
        return record(llm)
    raise AssertionError("the interruption did not reach the caller")


class Cycle:
    """Garbage that only the collector can free."""

    def __init__(self):
        self.itself = self


def garbage_of_every_age(llm):
    """Many steps of the pause itself: each leaves a cycle of its own, and one that has lived for LIFE steps.

    Returns the most cycles that waited for the collector at once, young and old, and what bounds them.
    """
    pause = getattr(gc_utils, "StepGC", None)
    if pause is None or SWITCH not in os.environ:
        return None
    pause, before = pause(), gc.get_threshold()
    gc.collect()
    gc.set_threshold(*THRESHOLD)
    alive, held, most = {"young": weakref.WeakSet(), "old": weakref.WeakSet()}, deque(), {"young": 0, "old": 0}
    for _ in range(STEPS):
        pause.before_step()
        alive["young"].add(Cycle())
        held.append(Cycle())
        if len(held) > LIFE:
            alive["old"].add(held.popleft())
        most = {age: max(most[age], len(cycles)) for age, cycles in alive.items()}
    pause.resume()
    gc.set_threshold(*before)
    interval = int(os.environ[SWITCH])
    # An older generation is collected once its count, of collections of the one before it, exceeds its threshold.
    return most | {"steps": STEPS, "interval": interval, "bound": interval * (THRESHOLD[1] + 2) * (THRESHOLD[2] + 2)}


def step_fails(llm):
    llm.collective_rpc("watch_gc")
    llm.collective_rpc("fail_at", args=(FAILS_AT_STEP,))
    sampling = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    try:
        llm.generate([{"prompt_token_ids": [5, 6, 7]}], sampling, use_tqdm=False)
    except RuntimeError as error:
        return {"error": str(error)} | record(llm)
    raise AssertionError("the worker's failure did not reach the caller")


def in_process(model):
    # step_fails is the last: it leaves an unfinished request behind.
    actions = (plain_run, caller_has_disabled, within_another_pause)
    actions += (garbage_of_every_age, caller_is_interrupted, step_fails)
    llm = engine(model)
    return {action.__name__: action(llm) for action in actions}


def two_runs(model):
    llm = engine(model)
    return [plain_run(llm) | once_idle(llm), plain_run(llm) | once_idle(llm)]


def once_idle(llm):
    """The collector's state once it is on, or after ten seconds: behind the last answer vllm 0.23's engine core makes one more step."""
    for _ in range(100):
        enabled = record(llm)["enabled_when_idle"]
        if enabled:
            break
        time.sleep(0.1)
    return {"enabled_when_idle": enabled}


def start_with(model, *values):
    """Starts an engine with each value of the switch; returns the errors and what was written to stderr."""
    return {value: _start(model, value) for value in values}


def _start(model, value):
    os.environ[SWITCH] = value
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)
        try:
            engine(model)
        except Exception as error:
            log.seek(0)
            return {"type": type(error).__name__, "error": str(error), "log": log.read().decode(errors="replace")}
        finally:
            os.dup2(stderr, 2)
    return None


def compile_cache_keys(model, *values):
    """What vllm's compilation cache is keyed by, for each value of the switch."""
    keys = {}
    for value in values:
        os.environ[SWITCH] = value
        config = EngineArgs(model=model, tokenizer=model, **ENGINE).create_engine_config()
        factors = {name: str(factor) for name, factor in envs.compile_factors().items()}
        keys[value] = {"factors": factors, "config": config.compute_hash()}
    return keys


ACTIONS = {
    "in-process": in_process,
    "two-runs": two_runs,
    "start-with": start_with,
    "compile-cache-keys": compile_cache_keys,
}

if __name__ == "__main__":
    print(json.dumps(ACTIONS[sys.argv[1]](*sys.argv[2:])))
