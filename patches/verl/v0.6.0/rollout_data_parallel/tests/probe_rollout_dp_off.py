"""Probe: what verl makes of parallel sizes that are not data parallel synchronous vllm.

Usage: probe_rollout_dp_off.py MOE DENSE

For a vllm that verl v0.6.0 was written for, so that it runs on the unpatched tree too: the arguments and the environment
that `LLM` is given without data parallelism, and the dispatch shards of rollouts that keep upstream's rule.
"""

import json
import os
import sys

import torch
import torch.distributed as dist
from transformers import AutoConfig

MODEL, DENSE = sys.argv[1:]

# vllm 0.9 and 0.10 register model types that transformers has had of its own since.
_register = AutoConfig.register
AutoConfig.register = staticmethod(lambda name, config, exist_ok=False: _register(name, config, exist_ok=True))

import verl.workers.fsdp_workers as fsdp_workers  # noqa: E402
from probe_rollout_dp_ranks import run_world  # noqa: E402
from rollout_config import compose_config, model_config, rollout_config  # noqa: E402
from verl.workers.rollout.vllm_rollout import vllm_rollout_spmd as spmd  # noqa: E402

KEEP = {
    "sync": {"tensor_model_parallel_size": 2},
    "sync_replicas": {},
    "async": {"mode": "async", "data_parallel_size": 2},
    "sglang": {"name": "sglang", "data_parallel_size": 2},
}
EP2 = {"tensor_model_parallel_size": 2, "expert_parallel_size": 2}


class Constructed(Exception):
    """Ends a constructor where a device would be needed."""


def stop(*args, **kwargs):
    raise Constructed


def handed_to_llm(model=MODEL, **settings):
    """Everything that `LLM` is given, and the data parallel variables meanwhile."""
    handed = {}

    def engine(**kwargs):
        handed["arguments"] = {key: value for key, value in kwargs.items() if key != "model"}
        handed["environment"] = [key for key in os.environ if key.startswith("VLLM_DP_")]
        raise Constructed

    spmd.LLM = engine
    try:
        spmd.vLLMRollout(rollout_config(model, **settings), model_config(model), device_mesh=None)
    except Constructed:
        return handed


def shard(name):
    """The dispatch shard of this rank, whether it is collected, and the seed of its generation."""
    worker = fsdp_workers.ActorRolloutRefWorker(compose_config(MODEL, **KEEP[name]).actor_rollout_ref, "rollout")
    seeds = []
    torch.cpu.manual_seed = seeds.append
    fsdp_workers.get_rollout_class = stop
    try:
        worker._build_rollout()
    except Constructed:
        return [worker._query_dispatch_info("rollout"), worker._query_collect_info("rollout"), *seeds]


def rank_of_two(rank):
    for name in ("get_rng_state", "set_rng_state"):
        setattr(torch.cpu, name, getattr(torch, name))  # verl asks the device's module, here torch.cpu
    dist.init_process_group("gloo")
    result = {name: shard(name) for name in KEEP}
    if rank == 0:
        result["llm"] = handed_to_llm()
        result["dense"] = [handed_to_llm(DENSE, tensor_model_parallel_size=2), handed_to_llm(DENSE, **EP2)]
        result["twice"] = handed_to_llm(**EP2, **{"+engine_kwargs.vllm.enable_expert_parallel": True})
    dist.barrier()
    dist.destroy_process_group()
    return result


print(json.dumps(run_world(2, rank_of_two)))
