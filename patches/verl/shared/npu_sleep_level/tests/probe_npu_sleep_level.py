"""Probe: at which level verl's own vllm server lets its engine sleep. Usage: probe_npu_sleep_level.py MODEL OVERRIDES...

Each OVERRIDES is a JSON list for verl's ppo_trainer. The server is made as a replica's only node, in this process, and its engine notes
what it is asked. Prints the level for each OVERRIDES on an NPU; then the last one's for a configuration of another class, which has no such
field, for a replica that shares its devices with others, and on another device.
"""

import npu_engine_0_23

npu_engine_0_23.prepare()

import asyncio  # noqa: E402  (the platform must be prepared first)
import dataclasses  # noqa: E402
import json  # noqa: E402
import sys  # noqa: E402
from types import SimpleNamespace  # noqa: E402

import ray  # noqa: E402
from hydra import compose, initialize_config_module  # noqa: E402
from verl.workers.rollout.replica import RolloutMode  # noqa: E402
from verl.workers.rollout.vllm_rollout import vllm_async_server  # noqa: E402


class Engine:
    """Stands for AsyncLLM, whose engine cores are processes of their own."""

    def __init__(self):
        self.levels = []

    async def sleep(self, level):
        self.levels.append(level)

    async def reset_encoder_cache(self):
        pass


def server(model, overrides):
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=[f"actor_rollout_ref.model.path={model}", *overrides])
    made = vllm_async_server.vLLMHttpServer(
        config.actor_rollout_ref.rollout, config.actor_rollout_ref.model, RolloutMode.HYBRID, [None], 0, 0, 1, 1, "0"
    )
    made.engine = Engine()
    return made


def levels(made):
    made.engine.levels.clear()
    asyncio.run(made.sleep())
    return list(made.engine.levels)


def main():
    ray.get_runtime_context = lambda: SimpleNamespace(get_job_id=lambda: "job")
    ray.util.get_node_ip_address = lambda: "127.0.0.1"
    model, *cases = sys.argv[1:]
    found = {"npu": []}
    for overrides in map(json.loads, cases):
        made = server(model, overrides)
        found["npu"].append(levels(made))
    given = made.config
    fields = {one.name: getattr(given, one.name) for one in dataclasses.fields(given) if one.name != "npu_sleep_level"}
    made.config = SimpleNamespace(**fields)
    found["another class"] = levels(made)
    made.config, made.rollout_mode = given, RolloutMode.COLOCATED
    found["colocated"] = levels(made)
    made.rollout_mode = RolloutMode.HYBRID
    vllm_async_server.is_torch_npu_available = lambda check_device: False
    found["another device"] = levels(made)
    print(json.dumps(found))


main()
