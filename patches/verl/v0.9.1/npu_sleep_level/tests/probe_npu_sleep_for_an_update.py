"""Probe: what verl's own vllm server asks of its engine around an update. Usage: probe_npu_sleep_for_an_update.py MODEL OVERRIDE...

The server has devices of its own, an NPU's, is a replica's only node and in this process; its engine notes what it is asked. Prints that.
"""

import npu_engine_0_23

npu_engine_0_23.prepare()

import asyncio  # noqa: E402  (the platform must be prepared first)
import json  # noqa: E402
import sys  # noqa: E402
from types import SimpleNamespace  # noqa: E402

import ray  # noqa: E402
from hydra import compose, initialize_config_module  # noqa: E402
from verl.workers.rollout.replica import RolloutMode  # noqa: E402
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer  # noqa: E402


class Engine:
    """Stands for AsyncLLM, whose engine cores are processes of their own."""

    def __init__(self):
        self.asked = []

    async def sleep(self, level):
        self.asked.append(["sleep", level])

    async def wake_up(self, tags):
        self.asked.append(["wake_up", tags])

    async def reset_prefix_cache(self, reset_connector):
        pass


async def update(server):
    await server.release_kv_cache()
    await server.resume_kv_cache()


def main():
    ray.get_runtime_context = lambda: SimpleNamespace(get_job_id=lambda: "job")
    ray.util.get_node_ip_address = lambda: "127.0.0.1"
    model, *overrides = sys.argv[1:]
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=[f"actor_rollout_ref.model.path={model}", *overrides])
    rollout, model = config.actor_rollout_ref.rollout, config.actor_rollout_ref.model
    server = vLLMHttpServer(rollout, model, RolloutMode.STANDALONE, [None], 0, 0, 1, 1, "0")
    server.engine = Engine()
    asyncio.run(update(server))
    print(json.dumps(server.engine.asked))


main()
