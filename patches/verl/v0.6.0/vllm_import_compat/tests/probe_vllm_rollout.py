"""Probe: verl's vLLMRollout on a real vllm engine, before and after new weights. Usage: probe_vllm_rollout.py MODEL"""

import asyncio
import json
import os
import sys

import npu_engine

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine stays in this process, which is prepared
npu_engine.prepare()

import torch  # noqa: E402  (what imports vllm comes after the preparation)
import torch.distributed as dist  # noqa: E402
from rollout_config import disturbed, hf_greedy, model_config, padded_prompts, rollout_config  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

MODEL = sys.argv[1]


async def new_weights(rollout, hf):
    """As the worker does between training and generation, with sleep mode on."""
    await rollout.release()
    await rollout.resume(tags=["weights"])
    await rollout.update_weights(iter(hf.state_dict().items()))
    await rollout.resume(tags=["kv_cache"])


def main():
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    from verl.workers.rollout.base import get_rollout_class

    rollout = get_rollout_class("vllm", "sync")(rollout_config(MODEL), model_config(MODEL), device_mesh=None)

    def generate():
        return rollout.generate_sequences(padded_prompts()).batch["responses"].tolist()

    result = {"hf": hf_greedy(MODEL), "before": generate()}
    hf = disturbed(AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32))
    asyncio.run(new_weights(rollout, hf))
    result["after"] = generate()
    result["memory_pool"] = npu_engine.MemoryPool.asked
    print(json.dumps(result))


os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
main()
