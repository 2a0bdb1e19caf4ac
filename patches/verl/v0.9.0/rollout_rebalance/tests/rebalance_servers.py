"""Two of verl's own vllm servers in this process, each with an engine of vllm-ascend 0.23 in a process of its own, behind verl's own
load balancer and clients. What Ray does between them is done here: arguments and results are pickled, methods of an actor run on one
event loop, and what fails there is raised where it was called."""

import os

import npu_experts_0_23

os.environ |= {"VLLM_WORKER_MULTIPROC_METHOD": "fork", "VLLM_ASCEND_ENABLE_NZ": "0"}
npu_experts_0_23.prepare("A2")

import asyncio  # noqa: E402  (the platform must be prepared first)
import inspect  # noqa: E402
import json  # noqa: E402
import shutil  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from types import SimpleNamespace  # noqa: E402

import cloudpickle  # noqa: E402
import ray  # noqa: E402
import torch  # noqa: E402
from hydra import compose, initialize_config_module  # noqa: E402
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM  # noqa: E402
from verl.workers.rollout import llm_server  # noqa: E402
from verl.workers.rollout.replica import RolloutMode  # noqa: E402
from verl.workers.rollout.vllm_rollout import vllm_async_server  # noqa: E402
from vllm.model_executor.layers.fused_moe import routed_experts_capturer  # noqa: E402

# Its buffer is on the platform's device by name, which is the CPU here.
routed_experts_capturer.current_platform = SimpleNamespace(device_type="cpu")

ROLLOUT = "actor_rollout_ref.rollout"
SETTINGS = [
    f"{ROLLOUT}.{key}"
    for key in (
        "name=vllm", "tensor_model_parallel_size=1", "max_model_len=512", "max_num_seqs=8", "max_num_batched_tokens=512",
        "dtype=float32", "load_format=auto", "enforce_eager=True", "prompt_length=64", "response_length=256",
    )
]  # fmt: skip
SETTINGS += [
    f"+{ROLLOUT}.engine_kwargs.vllm.{key}" for key in ("distributed_executor_backend=uni", "async_scheduling=False")
]


class Actor:
    """The handle of an actor: `handle.method.remote(...)` is awaited."""

    def __init__(self, of):
        self.of = of

    def __getattr__(self, name):
        async def call(args, kwargs):
            args, kwargs = cloudpickle.loads(cloudpickle.dumps((args, kwargs)))
            result = getattr(self.of, name)(*args, **kwargs)
            if inspect.isawaitable(result):
                result = await result
            # The handle of an actor is the same where it arrives.
            return result if name == "acquire_server" else cloudpickle.loads(cloudpickle.dumps(result))

        return SimpleNamespace(remote=lambda *args, **kwargs: asyncio.ensure_future(call(args, kwargs)))


def not_square(model, folder):
    """The tiny model with experts whose first weights are not square: verl's loader for NPUs would turn those a second time."""
    shutil.copytree(model, folder)
    config = Qwen3MoeConfig(**json.loads((folder / "config.json").read_text()) | {"moe_intermediate_size": 48})
    torch.manual_seed(0)
    Qwen3MoeForCausalLM(config).float().save_pretrained(folder)
    return str(folder)


def configuration(model, *overrides):
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=[f"actor_rollout_ref.model.path={model}", *SETTINGS, *overrides])


async def servers(config, number=2):
    """Launched as replicas of one device each; `server_N` is the name of each."""
    ray.get_runtime_context = lambda: SimpleNamespace(get_job_id=lambda: "01000000")
    made = {}
    for rank in range(number):
        server = vllm_async_server.vLLMHttpServer(
            config.actor_rollout_ref.rollout, config.actor_rollout_ref.model, RolloutMode.HYBRID, [None], rank, 0, 1, 1, str(rank)
        )  # fmt: skip
        await server.launch_server()
        made[f"server_{rank}"] = server
    return made


async def manager(config, made):
    """Verl's manager of these servers, with the load balancer that it makes of the configuration."""
    for module in (llm_server, sys.modules[llm_server.GlobalRequestLoadBalancer.__module__]):
        module.ray = SimpleNamespace(remote=lambda cls: SimpleNamespace(remote=lambda **given: Actor(cls(**given))))
    one = llm_server.LLMServerManager.__new__(llm_server.LLMServerManager)
    one.config, one.rollout_config = config, config.actor_rollout_ref.rollout
    one._load_balancer_cls = llm_server.GlobalRequestLoadBalancer
    one.server_addresses, one.server_handles = list(made), [Actor(server) for server in made.values()]
    await one._init_global_load_balancer()
    return one


def prompt(number, length=12):
    return [20 + (number * 37 + at * 5) % 400 for at in range(length)]


GREEDY = {"temperature": 0.0, "ignore_eos": True, "logprobs": True}


async def until(holds, seconds=60.0):
    """Waits until `holds()`, which may be awaited, is true."""
    end = time.monotonic() + seconds
    while True:
        result = holds()
        if await result if inspect.isawaitable(result) else result:
            return
        if time.monotonic() > end:
            raise TimeoutError(inspect.getsource(holds))
        await asyncio.sleep(0.01)


def shown(output):
    """An answer as JSON."""
    routes = output.routed_experts
    return {
        "tokens": output.token_ids,
        "log_probs": output.log_probs,
        "routes": None if routes is None else routes.tolist(),
        "stop_reason": output.stop_reason,
        "fields": {name: value for name, value in output.extra_fields.items() if name != "kv_transfer_params"},
    }


def modules_of_the_patch():
    return [name for name in sys.modules if name.startswith("verl.workers.rollout.rebalance")]


def end(made):
    """Ends the engines' processes."""
    for server in made.values():
        server.engine.shutdown()
