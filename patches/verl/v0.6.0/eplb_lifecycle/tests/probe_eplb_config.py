"""Probe: what rollout.eplb_lifecycle makes of configurations, without an engine. Usage: probe_eplb_config.py QWEN3 MOE

Workers build rollouts with their own `_build_rollout`, in one process; that may end with an error later on (SGLang, for
one, is not installed), and what is printed is the refusal of eplb_lifecycle, or None. Cases with more ranks call the
check itself, with torch.distributed's answer for so many.
"""

import json
import sys
from dataclasses import fields

import torch.distributed as dist
from omegaconf import OmegaConf
from rollout_config import compose_config, model_config
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import RolloutConfig

QWEN3, MOE = sys.argv[1:3]
KEY = "actor_rollout_ref.rollout.eplb_lifecycle"
PROCESSES_EXPERTS = "moe_update_weights" in {field.name for field in fields(RolloutConfig)}
BOTH = {"tensor_model_parallel_size": 2, "expert_parallel_size": 2}
BOTH |= {"moe_update_weights": True} if PROCESSES_EXPERTS else {}
WORKERS = {"fsdp": "verl.workers.fsdp_workers", "megatron": "verl.workers.megatron_workers"}


def built(kind, **settings):
    """What a real worker's _build_rollout says, alone in its world."""
    module = __import__(WORKERS[kind], fromlist=["ActorRolloutRefWorker"])
    module.get_device_name = lambda: "cpu"
    module.device_name = "cpu"
    worker = object.__new__(module.ActorRolloutRefWorker)
    worker.config = compose_config(MOE, **{"eplb_lifecycle": True} | settings).actor_rollout_ref
    worker.bridge = None
    # What the worker has learnt from Ray before.
    worker.__dict__.update(_rank=0, _world_size=1)
    worker._register_dispatch_collect_info = lambda *args, **kwargs: None
    try:
        worker._build_rollout()
    except Exception as error:  # the refusal, or what comes of building without an engine
        return str(error) if KEY in str(error) else None
    return None


def standalone(name, mode, **settings):
    """What the rollout itself says that a server's own worker builds, which no _build_rollout comes before."""
    from verl.workers.rollout.base import BaseRollout
    from verl.workers.rollout.vllm_rollout import vLLMAsyncRollout

    config = _rollout({"name": name, "mode": mode} | settings, MOE)
    # SGLang's ServerAdapter is in a module that needs SGLang; it begins with this constructor.
    rollout = type("Adapter", (BaseRollout,), dict.fromkeys(BaseRollout.__abstractmethods__))
    if name == "vllm":
        rollout = vLLMAsyncRollout
    try:
        rollout(config, model_config(MOE), None)
    except Exception as error:  # the refusal, or what comes of building without a server
        return str(error) if KEY in str(error) else None
    return None


def checked(settings, model=MOE, lora_rank=0, workers=2):
    from verl.workers.rollout.eplb_lifecycle import check

    dist.get_world_size = lambda *args: workers
    try:
        check(_rollout(settings, model), model_config(model, lora_rank))
    except ValueError as error:
        return str(error)
    return None


def _rollout(settings, model):
    config = compose_config(model, **{"eplb_lifecycle": True} | settings).actor_rollout_ref.rollout
    return omega_conf_to_dataclass(config, dataclass_type=RolloutConfig)


def merged(additional_config):
    from verl.workers.rollout.eplb_lifecycle import with_balancing

    dist.get_world_size = lambda *args: 2
    given = {"additional_config": additional_config, "seed": 7}
    try:
        after = with_balancing(_rollout(BOTH, MOE), model_config(MOE), given)
    except ValueError as error:
        return str(error)
    json.dumps(after)  # plain: the engine must not get configurations of OmegaConf's
    return {"after": after, "given_changed": "on_demand" in str(given)}


def main():
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    alone = {"tensor_model_parallel_size": 1}
    result = {kind: {} for kind in WORKERS}
    for kind in WORKERS:
        result[kind]["sglang"] = built(kind, **alone, name="sglang")
        result[kind]["async"] = built(kind, **alone, mode="async")
        result[kind]["one"] = built(kind, **alone)
        result[kind]["off"] = built(kind, **alone, name="sglang", eplb_lifecycle=False)
    dist.destroy_process_group()
    result["standalone"] = {
        "async": standalone("vllm", "async"),
        "sglang": standalone("sglang", "async"),
        "off": standalone("vllm", "async", eplb_lifecycle=False),
        "off_sglang": standalone("sglang", "async", eplb_lifecycle=False),
    }
    result["checked"] = {
        "good": checked(BOTH),
        "dense": checked(BOTH, model=QWEN3),
        "lora": checked(BOTH, lora_rank=8),
        "groups": checked(BOTH, workers=4),
    }
    result["unprocessed"] = checked(BOTH | {"moe_update_weights": False}) if PROCESSES_EXPERTS else "not declared"
    own = {"enable_cpu_binding": False, "eplb_config": {"eplb_policy_type": 2}}
    result["merged"] = {
        "none": merged(None),
        "plain": merged(own),
        "omega": merged(OmegaConf.create(own)),
        "text": merged(json.dumps(own)),
        "same": merged({"eplb_config": {"dynamic_eplb": True, "on_demand": True}}),
        "opposite": merged({"eplb_config": {"dynamic_eplb": False}}),
        "from_the_start": merged({"eplb_config": {"on_demand": False}}),
        "no_mapping": merged(["on_demand"]),
        "no_json": merged("on_demand"),
    }
    print(json.dumps(result))


main()
