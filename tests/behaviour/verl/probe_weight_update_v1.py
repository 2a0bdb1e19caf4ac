"""Probe: new weights for a running engine of vllm 0.23 with vllm-ascend 0.23, by verl v0.9.0's own transfer and worker extension.

Usage: probe_weight_update_v1.py STANDIN MODEL WAY..., STANDIN preparing the engine and a WAY being `awake` or `asleep` (the engine
sleeps before each update, and wakes as verl wakes it), or `balanced`: as `asleep`, on ranks that share the experts, which eplb_reset
moves between waking and sleep. The sender and update_weights_from_ipc are those of verl's ServerAdapter, over shared memory, in buckets
smaller than a model; Ray and the server, which hand the call on, are left out. Weights have the names of a checkpoint. Prints for each WAY
the engine's greedy tokens before and after each of three updates and Hugging Face's, how many weights vllm-ascend keeps otherwise than
loaders write them (experts, and projections of latent attention), and whether they are in their place; for `balanced` the tokens after an
update twice, many steps apart, and how many slots each sleep has put back.
"""

import asyncio
import importlib
import json
import os
import pathlib
import sys
import threading
import traceback

import npu_engine

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine stays in this process, which is prepared
importlib.import_module(sys.argv[1]).prepare(device="A2")

import torch  # noqa: E402  (what imports vllm comes after the preparation)
from rollout_config import disturbed  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402
from verl.workers.rollout.vllm_rollout import bucketed_weight_transfer as transfer  # noqa: E402
from vllm import SamplingParams  # noqa: E402

MODEL, WAYS = sys.argv[2], sys.argv[3:]
PROMPTS, LENGTH, BUCKET = [[10, 11, 12, 13, 14], [20, 21, 22]], 12, 150_000
MORE = 40
EXTENSION = "verl.workers.rollout.vllm_rollout.utils.vLLMColocateWorkerExtension"
ALONE = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
os.environ |= {name: os.environ.get(name, value) for name, value in ALONE.items()}
RANKS = int(os.environ["WORLD_SIZE"])
BALANCING = {
    "dynamic_eplb": True,
    "on_demand": True,
    "eplb_policy_type": 1,
    "expert_heat_collection_interval": 4,
    "algorithm_execution_interval": 2,
}


class Versions:
    """The model's weights after so many disturbances: as tensors of a checkpoint, and what Hugging Face answers with them."""

    def __init__(self):
        self._hf = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
        self.made = [self._now()]
        for _ in range(2):
            disturbed(self._hf)
            self.made.append(self._now())

    def _now(self):
        folder = pathlib.Path(f"weights_{len(os.listdir('.'))}").absolute()
        self._hf.save_pretrained(folder)
        tensors = {name: one for file in sorted(folder.glob("*.safetensors")) for name, one in load_file(file).items()}
        greedy = {"max_new_tokens": LENGTH, "do_sample": False, "eos_token_id": None}
        answers = [self._hf.generate(torch.tensor([one]), **greedy)[0, -LENGTH:].tolist() for one in PROMPTS]
        return tensors, answers


def update(llm, tensors):
    """As ServerAdapter.update_weights: the engine is asked to receive, and meanwhile the sender sends."""
    (handle,) = llm.collective_rpc("_get_zmq_handle")

    def receive():
        try:
            llm.collective_rpc("update_weights_from_ipc", kwargs={"use_shm": True})
        except BaseException:
            traceback.print_exc()
            os._exit(1)  # the sender would wait for ever

    receiver = threading.Thread(target=receive)
    receiver.start()
    sender = transfer.BucketedWeightSender(handle, bucket_size_mb=1, use_shm=True)
    sender.bucket_size = BUCKET
    asyncio.run(sender.async_send_weights(iter(tensors.items())))
    receiver.join()
    llm.reset_prefix_cache()


def tokens(llm, length=LENGTH):
    params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
    outputs = llm.generate([{"prompt_token_ids": one} for one in PROMPTS], params, use_tqdm=False)
    return [list(one.outputs[0].token_ids) for one in outputs]


def places(llm):
    model = llm.llm_engine.model_executor.driver_worker.worker.model_runner.get_model()
    kept = [value for name, value in model.named_parameters() if name.endswith(("w13_weight", "w2_weight"))]
    latent = [module.impl for module in model.modules() if hasattr(getattr(module, "impl", None), "W_UV")]
    return [one.data_ptr() for one in [*kept, *(one for impl in latent for one in (impl.W_UV, impl.W_UK_T))]]


def run(way, versions):
    shared = {"tensor_parallel_size": RANKS, "enable_expert_parallel": True} if way == "balanced" else {}
    if way == "balanced":
        shared["additional_config"] = {"eplb_config": BALANCING}
        moved = moves()
    llm = npu_engine.small_llm(MODEL, worker_extension_cls=EXTENSION, enable_sleep_mode=True, **shared)
    before, given = places(llm), [tokens(llm)]
    for tensors, _ in (versions[1], versions[2], versions[1]):
        if way != "awake":
            llm.sleep(level=2)
            llm.wake_up(tags=["weights"])
        update(llm, tensors)
        if way != "awake":
            llm.wake_up(tags=["kv_cache"])
        given.append(tokens(llm))
        if way == "balanced":  # steps enough that experts move, and the answers with them where they are
            tokens(llm, MORE)
            given[-1] = [given[-1], tokens(llm)]
    result = {"tokens": given, "kept": len(before), "in place": before == places(llm)}
    if way == "balanced":
        llm.sleep(level=2)
        result["moved"] = moved
    return result


def moves():
    """A list to which each sleep adds how many slots it has put back."""
    from vllm_ascend.eplb import on_demand

    stop, moved = on_demand.OnDemandEplb.stop, []

    def stopped(self):
        moved.append(stop(self))
        return moved[-1]

    on_demand.OnDemandEplb.stop = stopped
    return moved


def main():
    transfer.is_support_ipc = lambda: False  # asks npu-smi; so is the sender of a device whose driver is too old
    alone = {"init_method": "tcp://127.0.0.1:0", "rank": 0, "world_size": 1} if RANKS == 1 else {}
    torch.distributed.init_process_group("gloo", **alone)
    versions = Versions().made
    hf = [versions[index][1] for index in (0, 1, 2, 1)]
    print(json.dumps({"hf": hf} | {way: run(way, versions) for way in WAYS}))
    torch.distributed.destroy_process_group()


main()
