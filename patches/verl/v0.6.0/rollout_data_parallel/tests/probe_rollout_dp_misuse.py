"""Probe: settings that data parallel rollout refuses. Usage: probe_rollout_dp_misuse.py DENSE MOE

Two processes try to build verl's vLLMRollout; each prints, by case, what it was told. Of settings that are accepted it
prints what `LLM` would be given for them.
"""

import json
import logging
import os
import sys

import npu_engine

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
npu_engine.prepare(device="A2")

import torch.distributed as dist  # noqa: E402  (what imports vllm comes after the preparation)
from probe_rollout_dp_ranks import run_world  # noqa: E402
from rollout_config import model_config, rollout_config  # noqa: E402
from verl.workers.rollout import data_parallel  # noqa: E402
from verl.workers.rollout.vllm_rollout.vllm_rollout_spmd import vLLMRollout  # noqa: E402

DENSE, MOE = sys.argv[1:]
DP2 = {"data_parallel_size": 2}
EP2 = {"tensor_model_parallel_size": 2, "expert_parallel_size": 2}
GIVEN = "+engine_kwargs.vllm.enable_expert_parallel"


def refused(model=MOE, environment=(), **settings):
    """The error of building the rollout so, without the class's name; None when it is built."""
    os.environ.update(environment)
    try:
        vLLMRollout(rollout_config(model, **settings), model_config(model), device_mesh=None)
    except (ValueError, AssertionError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        for key in dict(environment):
            os.environ.pop(key, None)


def accepted(model, **settings):
    """Arguments for `LLM`, and what was logged as a warning."""
    said = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())
    data_parallel.logger.addHandler(handler)
    settings = EP2 | settings
    arguments = data_parallel.engine_arguments(rollout_config(model, **settings), model_config(model).hf_config)
    data_parallel.logger.removeHandler(handler)
    return [arguments, said]


def tried(rank):
    dist.init_process_group("gloo")
    result = {
        "dense": refused(DENSE, **DP2),
        "world": refused(data_parallel_size=3),
        "none": refused(data_parallel_size=0),
        "experts": refused(expert_parallel_size=3, **DP2),
        "twice": refused(**DP2, **{GIVEN: True}),
        "twice_off": refused(**EP2, **{GIVEN: False}),
        "asynchronous": refused(**DP2, **{"+engine_kwargs.vllm.async_scheduling": True}),
        "size": refused(environment={"VLLM_DP_SIZE": "4"}, **DP2),
        "size_of_one": refused(environment={"VLLM_DP_SIZE": "4"} if rank == 1 else (), **DP2),
        "accepted": {
            "experts": accepted(MOE),
            "agreeing": accepted(MOE, **{GIVEN: True}),
            "dense": accepted(DENSE),
        },
    }
    dist.barrier()
    dist.destroy_process_group()
    return result


print(json.dumps(run_world(2, tried)))
