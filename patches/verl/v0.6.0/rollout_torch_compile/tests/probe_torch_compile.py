"""Probe: verl's Megatron worker builds its rollout where MindSpeed's patches are applied, or where there is no MindSpeed.

Usage: probe_torch_compile.py MODEL sync|async. Real: MindSpeed's own patching (import and `repatch`), the worker with
its `_build_rollout`, vLLMRollout or vLLMAsyncRollout, vllm's compilation and graph wrappers. Of `init_model` only the
part that builds Megatron's model is left out. The device under the engine is a CPU with recorded graphs.
"""

import asyncio
import json
import os
import pickle
import sys

import torch
import torch_npu  # noqa: F401

REAL_COMPILE = torch.compile
MODEL, MODE = sys.argv[1:]
os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
os.environ.update(RAY_LOCAL_WORLD_SIZE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0")
# As with the torch 2.9 of torch_npu. Newer torch lets vllm load a model that an earlier process has compiled.
os.environ["VLLM_USE_AOT_COMPILE"] = "0"

try:  # before anything of vllm, as verl's worker module does
    import mindspeed.megatron_adaptor  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "mindspeed":
        raise
else:
    from megatron.training.global_vars import set_args
    from mindspeed.args_utils import get_mindspeed_args

    set_args(get_mindspeed_args())  # `repatch` reads them where megatron.training can be imported

import npu_engine  # noqa: E402
import probe_spec_graph_device  # noqa: E402

probe_spec_graph_device.prepare_graphs()
npu_engine.prepare()

import torch.distributed as dist  # noqa: E402
import verl  # noqa: E402
import zmq  # noqa: E402
from hydra import compose, initialize_config_dir  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from rollout_config import SETTINGS, padded_prompts  # noqa: E402
from verl.workers.megatron_workers import ActorRolloutRefWorker  # noqa: E402

GRAPHS = ["enforce_eager=False", "+engine_kwargs.vllm.compilation_config.cudagraph_mode=PIECEWISE"]
SIZES = ["+engine_kwargs.vllm.compilation_config.cudagraph_capture_sizes=[1,2]"]


def worker_config(overrides):
    """verl's ppo_megatron_trainer configuration for a rollout with graphs of one and two tokens."""
    rollout = [f"{key}={value}" for key, value in (SETTINGS | {"mode": MODE}).items() if key != "enforce_eager"]
    keys = [*rollout, *GRAPHS, *SIZES, *overrides]
    prefixed = [key.replace("+", "+actor_rollout_ref.rollout.", 1) if key[0] == "+" else _rollout(key) for key in keys]
    folder = os.path.join(os.path.dirname(verl.__file__), "trainer", "config")
    with initialize_config_dir(folder, version_base=None):
        config = compose("ppo_megatron_trainer", overrides=[f"actor_rollout_ref.model.path={MODEL}", *prefixed])
    return config.actor_rollout_ref


def _rollout(key):
    return f"actor_rollout_ref.rollout.{key}"


def make_worker(*overrides):
    """The worker as it stands in init_model before `_build_rollout`."""
    from transformers import AutoConfig

    worker = ActorRolloutRefWorker(config=worker_config(overrides), role="rollout")
    worker.actor_model_config, worker.dtype, worker.bridge = AutoConfig.from_pretrained(MODEL), torch.bfloat16, None
    return worker


def failing_build():
    """What remains of torch.compile when the engine refuses its configuration."""
    before = torch.compile
    try:
        make_worker("dtype=float31")._build_rollout()
    except Exception as error:
        return {"error": type(error).__name__, "restored": torch.compile is before}
    return {"error": None}


def compiled(model):
    """Whether the callable in vllm's model wrapper comes from the real torch.compile."""
    return hasattr(model.model._compiled_callable, "_torchdynamo_orig_callable")


def sync_build():
    from probe_spec_graph_device import RecordedGraph

    before = torch.compile
    worker = make_worker()
    worker._build_rollout()
    result = {"restored": torch.compile is before, "captured": RecordedGraph.captured}
    result["tokens"] = worker.rollout.generate_sequences(padded_prompts()).batch["responses"].tolist()
    driver = worker.rollout.inference_engine.llm_engine.model_executor.driver_worker
    return result | {"replayed": RecordedGraph.replayed, "compiled": compiled(driver.worker.model_runner.model)}


async def async_build():
    """Plays the engine core: sends what its executor sends to build a model, over ZeroMQ."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    before = torch.compile
    worker = make_worker()
    worker._build_rollout()
    engine = zmq.asyncio.Context.instance().socket(zmq.REQ)
    engine.connect(worker.rollout.get_zeromq_address())
    arguments = AsyncEngineArgs(
        model=MODEL, dtype="float32", max_model_len=64, max_num_seqs=8, compilation_config={"cudagraph_mode": 1}
    )
    start = {"rank": 0, "local_rank": 0, "distributed_init_method": "env://", "is_driver_worker": True}
    for method, values in (
        ("init_worker", [[start | {"vllm_config": arguments.create_engine_config()}]]),
        ("init_device", []),
        ("load_model", []),
    ):
        await engine.send(pickle.dumps((method, values, {})))
        pickle.loads(await engine.recv())
    worker.rollout.zmq_loop_task.cancel()
    model = worker.rollout.inference_engine.worker.model_runner.model
    return {"restored": torch.compile is before, "compiled": compiled(model)}


def main():
    replaced = torch.compile is not REAL_COMPILE
    torch.cpu.device_count = lambda: 0  # no accelerator whose generator Megatron would seed
    torch.cpu.get_rng_state, torch.cpu.set_rng_state = torch.get_rng_state, torch.set_rng_state
    torch.cpu.manual_seed = torch.manual_seed
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    result = {"replaced": replaced, "failing": failing_build()} if MODE == "sync" else {"replaced": replaced}
    result |= sync_build() if MODE == "sync" else asyncio.run(async_build())
    result["mindspeed"] = any(name.partition(".")[0] == "mindspeed" for name in sys.modules)
    print(json.dumps(result))
    sys.stdout.flush()
    os._exit(0)  # nothing is left to do, and ZeroMQ's sockets need not be closed in order


main()
