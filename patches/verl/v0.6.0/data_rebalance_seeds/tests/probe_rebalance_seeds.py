"""Probe: from which random numbers the replicas of verl's rollout draw. Usage: probe_rebalance_seeds.py MODEL CASES

CASES is a JSON list of {"procs", "worker", "settings", "only_seeds"}: a world of that many processes, whose ranks are verl's own workers
("fsdp" or "megatron") with `settings` of the rollout; they train too, so that they end their start in trainer mode. Real: the
worker's _build_rollout and trainer_mode, vLLMRollout and the engine, whose start seeds the device, its sampling. Of the actor
only what trainer_mode asks is there. Every rank generates for the same prompts, from the state that rollout_mode would set.
With `only_seeds` the rollout is one that does nothing but what vllm's engine does to the device: it calls vllm's
set_random_seed. Prints a list, by case, of lists by rank: {"seed", "tokens"}.
"""

import json
import os
import sys
from types import SimpleNamespace

import npu_engine

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine stays in the rank's process, which is prepared
npu_engine.prepare(device="A2")

import asyncio  # noqa: E402  (what imports vllm comes after the preparation)

import rollout_config  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from probe_rollout_dp_ranks import run_world  # noqa: E402

MODEL, CASES = sys.argv[1], json.loads(sys.argv[2])
TRAINERS = {"fsdp": "ppo_trainer", "megatron": "ppo_megatron_trainer"}


def fsdp_worker(config):
    from verl.workers.fsdp_workers import ActorRolloutRefWorker

    dist.init_process_group("gloo")  # the worker would ask for "cpu:gloo,cpu:nccl"
    worker = ActorRolloutRefWorker(config=config, role="rollout")
    worker.actor_module_fsdp = torch.nn.Identity()
    return worker


def megatron_worker(config):
    import verl.workers.megatron_workers as megatron_workers

    megatron_workers.get_nccl_backend = lambda: "gloo"
    worker = megatron_workers.ActorRolloutRefWorker(config=config, role="rollout")
    worker.bridge = True  # no weights are converted here
    worker.actor = SimpleNamespace(actor_module=[torch.nn.Identity()])
    return worker


class Seeds:
    """What is left of a rollout when only its engine's seed counts."""

    def __init__(self, config, **others):
        from vllm.utils.torch_utils import set_random_seed

        set_random_seed(config.get("seed", 0))  # vLLMRollout gives this to vllm


def run_case(case):
    for name in ("get_rng_state", "set_rng_state", "manual_seed"):
        setattr(torch.cpu, name, getattr(torch, name))  # verl asks the device's module, here torch.cpu
    for name in ("memory_reserved", "memory_allocated", "device_count"):
        setattr(torch.cpu, name, lambda *args: 0)
    torch.cpu.set_device = torch.cpu.empty_cache = torch.cpu.ipc_collect = lambda *args: None
    config = rollout_config.compose_config(MODEL, trainer=TRAINERS[case["worker"]], **case["settings"])
    worker = {"fsdp": fsdp_worker, "megatron": megatron_worker}[case["worker"]](config.actor_rollout_ref)
    worker._is_actor = True
    asyncio.set_event_loop(asyncio.new_event_loop())
    if case.get("only_seeds"):
        sys.modules[type(worker).__module__].get_rollout_class = lambda *names: Seeds
    worker._build_rollout()
    seed = int(torch.Generator().set_state(worker.gen_random_states).initial_seed())
    found = {"seed": seed}
    if not case.get("only_seeds"):
        torch.set_rng_state(worker.gen_random_states)  # as rollout_mode does
        prompts = rollout_config.padded_prompts()
        prompts.meta_info["do_sample"] = True
        found["tokens"] = worker.rollout.generate_sequences(prompts).batch["responses"].tolist()
    dist.barrier()
    dist.destroy_process_group()
    return found


print(json.dumps([run_world(case["procs"], lambda rank, case=case: run_case(case)) for case in CASES]))
