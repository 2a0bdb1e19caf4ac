"""Probe: verl's vLLMReplica, its HTTP server and its worker on a real vllm engine. Usage: probe_vllm_async.py MODEL

The worker stands for verl's hybrid worker: only the rollout side of it is there, on gloo instead of HCCL.
"""

import asyncio
import json
import os
import socket
import sys
import urllib.request
from types import SimpleNamespace

import ray
from rollout_config import PROMPT_LENGTH, PROMPTS, RESPONSE_LENGTH, compose_config, hf_greedy

MODEL = sys.argv[1]
WORKERS = 2
SETTINGS = {"mode": "async", "tensor_model_parallel_size": WORKERS}


@ray.remote(num_cpus=1)
class RolloutWorker:
    """Holds a real vLLMAsyncRollout, whose ZeroMQ loop runs in this actor's event loop."""

    async def start(self, model, rank, port):
        size = str(WORKERS)
        os.environ.update(RANK=str(rank), WORLD_SIZE=size, LOCAL_RANK=str(rank), RAY_LOCAL_WORLD_SIZE=size)
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        import npu_engine

        npu_engine.prepare()  # before anything of vllm
        import torch.distributed as dist
        from rollout_config import model_config, rollout_config
        from verl.workers.rollout.base import get_rollout_class

        dist.init_process_group("gloo")
        config = rollout_config(model, **SETTINGS)
        self.rollout = get_rollout_class("vllm", "async")(config, model_config(model), device_mesh=None)

    def get_zeromq_address(self):
        return self.rollout.get_zeromq_address()

    async def new_weights(self, model):
        import torch
        from rollout_config import disturbed
        from transformers import AutoModelForCausalLM

        hf = disturbed(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32))
        await self.rollout.update_weights(iter(hf.state_dict().items()))

    async def wake_up(self):
        await self.rollout.resume(tags=["weights", "kv_cache"])

    async def sleep(self):
        await self.rollout.release()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def completion(address, prompt):
    """Text of the server's OpenAI route, which vllm's init_app_state has set up."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 4, "temperature": 0, "return_token_ids": True}
    request = urllib.request.Request(
        f"http://{address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)["choices"][0]["token_ids"]


async def generate(server, name):
    outputs = [
        await server.generate.remote(prompt, {"temperature": 0, "logprobs": True}, f"{name}-{index}")
        for index, prompt in enumerate(PROMPTS)
    ]
    return [{"tokens": list(output.token_ids), "log_probs": len(output.log_probs)} for output in outputs]


async def main():
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=200 << 20)
    from verl.workers.rollout.replica import get_rollout_replica_class

    workers = [RolloutWorker.remote() for _ in range(WORKERS)]
    port = free_port()
    await asyncio.gather(*[worker.start.remote(MODEL, rank, port) for rank, worker in enumerate(workers)])
    config = compose_config(MODEL, **SETTINGS).actor_rollout_ref
    replica = get_rollout_replica_class("vllm")(0, config.rollout, config.model, gpus_per_node=WORKERS)
    await replica.init_hybrid(SimpleNamespace(workers=workers))

    result = {"before": await generate(replica.server_handle, "before")}
    result["http"] = await asyncio.to_thread(completion, replica.server_address, PROMPTS[0])
    await replica.sleep()
    await asyncio.gather(*[worker.new_weights.remote(MODEL) for worker in workers])
    await replica.wake_up()
    result["after"] = await generate(replica.server_handle, "after")
    ray.shutdown()
    result["hf"] = hf_greedy(MODEL, PROMPT_LENGTH + RESPONSE_LENGTH)
    print(json.dumps(result))


asyncio.run(main())
