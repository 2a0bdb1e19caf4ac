"""Probe: what verl makes of a checkpoint engine's name. Usage: probe_delta_settings.py MODEL BACKEND...

Prints for each the level at which verl's server lets an engine of its own sleep during an update, on an NPU and on another device, and what the
registry of checkpoint engines says to the name.
"""

import npu_engine_0_23

npu_engine_0_23.prepare()

import json  # noqa: E402  (the platform must be prepared first)
import sys  # noqa: E402
from types import SimpleNamespace  # noqa: E402

import ray  # noqa: E402
from hydra import compose, initialize_config_module  # noqa: E402
from verl.checkpoint_engine import CheckpointEngineRegistry  # noqa: E402
from verl.workers.rollout.replica import RolloutMode  # noqa: E402
from verl.workers.rollout.vllm_rollout import vllm_async_server  # noqa: E402


def levels(model, backend):
    overrides = [
        f"actor_rollout_ref.model.path={model}",
        "actor_rollout_ref.rollout.name=vllm",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
        f"actor_rollout_ref.rollout.checkpoint_engine.backend={backend}",
    ]
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=overrides).actor_rollout_ref
    made = vllm_async_server.vLLMHttpServer(
        config.rollout, config.model, RolloutMode.STANDALONE, [None], 0, 0, 1, 1, "0"
    )
    found, asked = [made._resolve_sleep_level()], vllm_async_server.is_torch_npu_available
    vllm_async_server.is_torch_npu_available = lambda check_device: False
    found.append(made._resolve_sleep_level())
    vllm_async_server.is_torch_npu_available = asked
    return found


def registered(backend):
    try:
        return CheckpointEngineRegistry.get(backend).__name__
    except ValueError as error:
        return str(error)


def main():
    ray.get_runtime_context = lambda: SimpleNamespace(get_job_id=lambda: "job")
    ray.util.get_node_ip_address = lambda: "127.0.0.1"
    model, *backends = sys.argv[1:]
    print(json.dumps({one: [*levels(model, one), registered(one)] for one in backends}))


main()
