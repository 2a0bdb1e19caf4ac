"""Probe: what verl calls of vllm, on whichever vllm is on the path, without running a model.

Usage: probe_vllm_calls.py MODEL CASE... It goes as far as a CPU without vllm's C++ goes: the worker is constructed, an
adapter is read, and the calls of the server and of the engine are bound to the real signatures.
"""

import asyncio
import importlib
import inspect
import json
import os
import sys
from types import SimpleNamespace

import torch
import torch.distributed as dist
from transformers import AutoConfig

MODEL = sys.argv[1]

# vllm 0.9.1 registers model types that transformers has had of its own since.
_register = AutoConfig.register
AutoConfig.register = staticmethod(lambda name, config, exist_ok=False: _register(name, config, exist_ok=True))

from rollout_config import compose_config, model_config, rollout_config  # noqa: E402
from verl.utils.config import validate_config  # noqa: E402
from verl.workers.rollout.base import get_rollout_class  # noqa: E402
from verl.workers.rollout.vllm_rollout import vllm_rollout_spmd as spmd  # noqa: E402
from vllm import LLM  # noqa: E402
from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: E402


class Constructed(Exception):
    """Ends a constructor where a device would be needed."""


def attempt(action, *args, **kwargs):
    try:
        return action(*args, **kwargs)
    except Exception as error:
        return {"refused": type(error).__name__, "message": str(error)}


def imports():
    """Every module of verl that imports vllm, Megatron's own aside."""
    names = ["utils.vllm.patch", "workers.sharding_manager.fsdp_vllm", "workers.rollout.vllm_rollout.vllm_async_server"]
    return [importlib.import_module(f"verl.{name}").__name__ for name in names]


def compilation():
    """The compilation settings that vLLMRollout hands to LLM, whose real signature must take the call."""
    from omegaconf import ListConfig

    handed = {}

    def engine(**kwargs):
        handed.update(inspect.signature(LLM).bind(**kwargs).kwargs)
        raise Constructed

    spmd.LLM = engine
    config = rollout_config(MODEL, enforce_eager=False)
    object.__setattr__(config, "cudagraph_capture_sizes", ListConfig([1, 2]))
    try:
        spmd.vLLMRollout(config, model_config(MODEL), device_mesh=None)
    except Constructed:
        pass
    chosen = handed["compilation_config"]
    piecewise = chosen.mode if hasattr(chosen, "mode") else chosen.level
    return {"piecewise": int(piecewise), "sizes": list(chosen.cudagraph_capture_sizes)}


def adapter():
    """What the hijacked _load_adapter makes of tensors; the manager around it holds only what the method reads."""
    from vllm.config import LoRAConfig
    from vllm.lora.worker_manager import LRUCacheWorkerLoRAManager

    name = "base_model.model.model.layers.0.self_attn.q_proj"
    tensors = {f"{name}.lora_A.weight": torch.ones(8, 64), f"{name}.lora_B.weight": torch.ones(64, 8)}
    config = {"r": 8, "lora_alpha": 8, "target_modules": ["q_proj"], "bias": "none", "use_dora": False}
    request = spmd.TensorLoRARequest(
        lora_name="a", lora_int_id=1, lora_path="none", peft_config=config, lora_tensors=tensors
    )
    manager = object.__new__(LRUCacheWorkerLoRAManager)
    manager._adapter_manager = SimpleNamespace(
        supported_lora_modules=["q_proj"], packed_modules_mapping={}, model=torch.nn.Module()
    )
    manager.lora_config = LoRAConfig(max_lora_rank=8, max_loras=1, lora_dtype=torch.float32)
    manager._lora_model_cls = inspect.getmodule(LRUCacheWorkerLoRAManager).LoRAModel
    manager.vocab_size, manager.embedding_modules, manager.embedding_padding_modules = 512, {}, []
    lora = manager._load_adapter(request)
    return {"rank": lora.rank, "modules": list(lora.loras)}


def engine_args():
    return AsyncEngineArgs(model=MODEL, dtype="float32", enforce_eager=True, max_model_len=64)


def worker():
    """The worker that vLLMAsyncRollout constructs when its executor asks for one."""

    async def construct():
        rollout = spmd.vLLMAsyncRollout(rollout_config(MODEL, mode="async"), model_config(MODEL), device_mesh=None)
        rollout.zmq_loop_task.cancel()
        # An open socket holds up whoever collects its context, for ever.
        rollout.socket.close(linger=0)
        arguments = {"local_rank": None, "rank": None, "distributed_init_method": "env://", "is_driver_worker": True}
        rollout._init_worker([{"vllm_config": engine_args().create_engine_config(), **arguments}])
        return type(rollout.inference_engine.worker).__name__

    os.environ.update(RANK="0", RAY_LOCAL_WORLD_SIZE="1")
    return asyncio.run(construct())


def server():
    """The calls of vLLMHttpServer.run_server, each bound to the signature of this vllm's own function."""
    from verl.workers.rollout.vllm_rollout import vllm_async_server as module

    calls = []

    def bound(function, result):
        def call(*args, **kwargs):
            inspect.signature(function).bind(*args, **kwargs)
            calls.append(function.__name__)
            return result

        call.__signature__ = inspect.signature(function)
        return call

    async def nothing(*args):
        return 0, None

    client, app = SimpleNamespace(reset_mm_cache=nothing), SimpleNamespace(state=None)
    module.AsyncLLM.from_vllm_config = bound(module.AsyncLLM.from_vllm_config, client)
    module.build_app = bound(module.build_app, app)
    module.init_app_state = bound(module.init_app_state, nothing())
    module.run_unvicorn = nothing
    actor = SimpleNamespace(_dp_master_port=1, replica_rank=1, node_rank=0, _server_address="")
    asyncio.run(module.vLLMHttpServer.__ray_metadata__.modified_class.run_server(actor, engine_args()))
    return calls


def executor():
    """What the engine core gets from verl's executor for a step, called as this vllm does, when a worker replies 7."""
    from threading import Thread

    import zmq
    from verl.workers.rollout.vllm_rollout.vllm_async_server import ExternalZeroMQDistributedExecutor

    with zmq.Context() as context, context.socket(zmq.REQ) as asked, context.socket(zmq.REP) as answering:
        answering.bind("inproc://worker")
        asked.connect("inproc://worker")
        worker = Thread(target=lambda: answering.send(b"\x80\x04K\x07." if answering.recv() else b""))  # a pickled 7
        worker.start()
        engine = object.__new__(ExternalZeroMQDistributedExecutor)
        engine.sockets = [asked]
        waits = "non_block" not in inspect.signature(engine.execute_model).parameters
        reply = engine.execute_model(None) if waits else engine.execute_model(None, non_block=True)
        worker.join()
        return reply if waits else reply.result(timeout=10)


def modes():
    """Where rollout.mode is read: on the driver before any worker, and in the worker."""

    def read(mode):
        config = compose_config(MODEL, mode=mode, log_prob_use_dynamic_bsz=True)
        config.actor_rollout_ref.actor.use_dynamic_bsz = True
        return {
            "driver": attempt(validate_config, config, use_reference_policy=False, use_critic=False),
            "worker": attempt(lambda: get_rollout_class("vllm", mode).__name__),
        }

    return {mode: read(mode) for mode in ("sync", "async")}


CASES = {case.__name__: case for case in (imports, compilation, adapter, worker, server, executor, modes)}
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
print(json.dumps({name: CASES[name]() for name in sys.argv[2:]}))
