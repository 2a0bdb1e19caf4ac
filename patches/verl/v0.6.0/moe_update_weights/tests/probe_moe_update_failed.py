"""Probe: an update of vLLMRollout that stops before its first weight. Usage: probe_moe_update_failed.py MODEL"""

import asyncio
import json
import os
import sys

import npu_engine

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine stays in this process, which is prepared
npu_engine.prepare(device="A2")

import torch.distributed as dist  # noqa: E402  (what imports vllm comes after the preparation)
from rollout_config import model_config, padded_prompts, rollout_config  # noqa: E402
from verl.workers.rollout.base import get_rollout_class  # noqa: E402

MODEL = sys.argv[1]


def tokens(rollout):
    return rollout.generate_sequences(padded_prompts()).batch["responses"].tolist()


def layouts(rollout):
    """By expert weight, whether it lies as the kernels read it."""
    model = rollout.inference_engine.llm_engine.model_executor.driver_worker.worker.model_runner.model
    experts = [layer.mlp.experts for layer in model.model.layers]
    return [getattr(layer, name).is_contiguous() for layer in experts for name in ("w13_weight", "w2_weight")]


def lost():
    """Weights whose sender fails."""
    raise ConnectionError("the sender is gone")
    yield


def main():
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }.items():
        os.environ.setdefault(name, value)
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    config = rollout_config(MODEL, dtype="float32", free_cache_engine=False, moe_update_weights=True)
    rollout = get_rollout_class("vllm", "sync")(config, model_config(MODEL), device_mesh=None)
    result = {"before": tokens(rollout), "said": None}
    try:
        asyncio.run(rollout.update_weights(lost()))
    except ConnectionError as error:
        result["said"] = str(error)
    result |= {"layouts": layouts(rollout), "after": tokens(rollout)}
    dist.destroy_process_group()
    print(json.dumps(result))


main()
