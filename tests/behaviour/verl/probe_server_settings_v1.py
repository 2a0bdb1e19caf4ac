"""Probe: with which configuration verl v0.9.0's own vllm server would start an engine of vllm 0.23.

Usage: probe_server_settings_v1.py MODEL OVERRIDES..., each a JSON list for verl's ppo_trainer. The server is made and launched as a
replica's only node, in this process; where run_server starts the engine, its configuration is noted and the launch ends. Ray is asked for
the id of its job alone, which names sockets. Prints a list, one for each OVERRIDES.
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
from verl.workers.rollout.vllm_rollout import vllm_async_server  # noqa: E402


class WouldStart(Exception):
    """An engine with the configuration `vllm_config`."""


class Engine:
    """Stands for AsyncLLM, whose engine cores are processes of their own."""

    @classmethod
    def from_vllm_config(cls, vllm_config, usage_context, enable_log_requests, disable_log_stats):
        raise WouldStart(vllm_config)


def would_start(model, overrides):
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=[f"actor_rollout_ref.model.path={model}", *overrides])
    rollout = config.actor_rollout_ref.rollout
    ranks = rollout.data_parallel_size * rollout.tensor_model_parallel_size
    devices = ",".join(map(str, range(ranks)))
    server = vllm_async_server.vLLMHttpServer(
        rollout, config.actor_rollout_ref.model, RolloutMode.HYBRID, [None] * ranks, 0, 0, ranks, 1, devices
    )
    try:
        asyncio.run(server.launch_server())
    except WouldStart as noted:
        (found,) = noted.args
    graphs, speculative, parallel = found.compilation_config, found.speculative_config, found.parallel_config
    return {
        "cudagraph_mode": graphs.cudagraph_mode.name,
        "cudagraph_capture_sizes": graphs.cudagraph_capture_sizes,
        "speculative": speculative
        and [speculative.method, speculative.num_speculative_tokens, speculative.prompt_lookup_max],
        "ascend": found.additional_config.get("ascend_compilation_config"),
        "parallel": [parallel.data_parallel_size, parallel.data_parallel_size_local, parallel.tensor_parallel_size],
        "expert_parallel": parallel.enable_expert_parallel,
        "logprobs_mode": found.model_config.logprobs_mode,
    }


def main():
    _, model, *runs = sys.argv
    ray.get_runtime_context = lambda: SimpleNamespace(get_job_id=lambda: "01000000")
    vllm_async_server.AsyncLLM = Engine
    print(json.dumps([would_start(model, json.loads(overrides)) for overrides in runs]))


main()
