"""Probe: vllm engines with NPUModelRunner: without speculation, with sam, and with sam and one history for all requests.

Usage: probe_sam_shared_engine.py MODEL CASE..., or MODEL config JSON... Each case is a process of its own, forked after the
imports, with one engine. The KV cache is too small for the requests that run together, so that some are preempted. A case
that fails prints its error. `config` makes configurations only, each with this sam_shared_history and options of EngineArgs.

Weights are updated by verl's own sender and worker extension, over shared memory and in several buckets, around a sleep.
"""

import asyncio
import json
import os
import sys
import threading
import traceback
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import npu_engine
import npu_engine_0_23

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine stays in this process, which is prepared
npu_engine_0_23.prepare()

import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from verl.workers.rollout.vllm_rollout import bucketed_weight_transfer as transfer  # noqa: E402
from vllm import SamplingParams  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.lora.request import LoRARequest  # noqa: E402
from vllm_ascend.ascend_config import clear_ascend_config  # noqa: E402

MODEL, *CASES = sys.argv[1:]
SAM = {
    "method": "custom_class",
    "model": "vllm_ascend.spec_decode.sam_proposer.SamProposer",
    "num_speculative_tokens": 3,
}
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
EXTENSION = "verl.workers.rollout.vllm_rollout.utils.vLLMColocateWorkerExtension"
BUCKET = 150_000  # bytes, fewer than the model has
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}


class Engine:
    """One engine, and what its scheduler and its drafter say of each load."""

    def __init__(self, speculative=None, rows=4, blocks=6, **additional):
        self.llm = npu_engine.small_llm(
            MODEL,
            max_model_len=256,
            max_num_seqs=rows,
            max_num_batched_tokens=64,
            num_gpu_blocks_override=blocks,
            speculative_config=speculative,
            additional_config=additional,
            worker_extension_cls=EXTENSION,
            enable_sleep_mode=True,
        )
        self.core = self.llm.llm_engine.engine_core.engine_core
        self.worker = self.core.model_executor.driver_worker.worker
        self.drafter = getattr(self.worker.model_runner.drafter, "proposer", None)
        self.shared = getattr(self.drafter, "shared", None)
        self.seen, self.added = {}, []
        take = self.core.scheduler.update_from_output

        def observed(scheduled, output):
            drafted = scheduled.scheduled_spec_decode_tokens
            for request in drafted:
                tokens = output.sampled_token_ids[output.req_id_to_index[request]]
                self.seen["accepted"] += max(len(tokens) - 1, 0)
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
        """As verl does, with the weights that it has: asleep, woken, given weights by its sender, and the cache woken."""
        self.llm.sleep(level=2)
        self.llm.wake_up(tags=["weights"])
        (handle,) = self.llm.collective_rpc("_get_zmq_handle")
        receiver = threading.Thread(target=self._receive)
        receiver.start()
        sender = transfer.BucketedWeightSender(handle, bucket_size_mb=1, use_shm=True)
        sender.bucket_size = BUCKET
        asyncio.run(sender.async_send_weights(iter(load_file(Path(MODEL) / "model.safetensors").items())))
        receiver.join()
        self.llm.reset_prefix_cache()
        self.llm.wake_up(tags=["kv_cache"])

    def _receive(self):
        try:
            self.llm.collective_rpc("update_weights_from_ipc", kwargs={"use_shm": True})
        except BaseException:
            traceback.print_exc()
            os._exit(1)  # the sender would wait for ever

    def update_adapter(self):
        """The engine's own call, of which the runner is told; it has no LoRA, and says so."""
        try:
            self.llm.llm_engine.add_lora(LoRARequest("one", 123, "nowhere"))
        except RuntimeError as error:
            return str(error)


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
    """All prompts twice, after an update, and after one of an adapter; in between others, which end in the newer generation."""
    engine = Engine(SAM, **HISTORY)
    seen = {"kind": kind(engine), "first": engine.answers(PROMPTS, LENGTHS)}
    seen["beyond"] = beyond(engine, seen["first"])
    seen["again"] = engine.answers(PROMPTS, LENGTHS)
    engine.update()
    seen["others"] = engine.answers(OTHERS, [40] * 3)
    used = engine.shared.used_bytes()
    seen["adapter"] = engine.update_adapter()
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
    return type(engine.drafter).__name__


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
        transfer.is_support_ipc = lambda: False  # asks npu-smi; so is the sender of a device whose driver is too old
        torch.distributed.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
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
