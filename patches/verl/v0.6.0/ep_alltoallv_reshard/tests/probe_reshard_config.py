"""Probe: the switch ep_alltoallv_reshard in verl's configuration, and what verl's Megatron worker refuses with it.

Usage: probe_reshard_config.py [off]. With "off" only a worker without the switch is started.
"""

import asyncio
import json
import os
import sys
from types import SimpleNamespace

import megatron_cpu
import torch
import torch.distributed as dist
from megatron.core import mpu
from probe_reshard_models import NAMES, Model

ACTOR, ROLLOUT = "actor_rollout_ref.actor.megatron", "actor_rollout_ref.rollout"
ON = f"{ACTOR}.ep_alltoallv_reshard=True"
BASE = [f"{ROLLOUT}.name=vllm", f"{ROLLOUT}.mode=sync", "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=1"]
VLLM = f"+{ROLLOUT}.engine_kwargs.vllm"
REFUSED = {
    "mbridge": [f"{ACTOR}.use_mbridge=True"],
    "expert tensor parallel": [f"{ACTOR}.expert_tensor_parallel_size=2"],
    "expert tensor parallel left open": [
        f"{ACTOR}.expert_tensor_parallel_size=null",
        f"{ACTOR}.tensor_model_parallel_size=2",
    ],
    "sglang": [f"{ROLLOUT}.name=sglang"],
    "async": [f"{ROLLOUT}.mode=async"],
    "vllm's EPLB": [f"{VLLM}.enable_eplb=True"],
    "vllm-ascend's EPLB": [f"{VLLM}.additional_config.dynamic_eplb=True"],
    "vllm-ascend's map": [f"{VLLM}.additional_config.eplb_config.expert_map_path=map.json"],
    "redundant experts": [f"{VLLM}.additional_config.eplb_config.num_redundant_experts=16"],
    "vllm-ascend's EPLB as text": [f"{VLLM}.additional_config='{{\"dynamic_eplb\": true}}'"],
}
# What the driver says of the switch where nothing goes to a rollout, whatever the actor has.
ELSEWHERE = {
    "critic": "critic.megatron.ep_alltoallv_reshard=True",
    "reward model": "+reward_model.megatron.ep_alltoallv_reshard=True",
}
# With these the worker goes on.
ACCEPTED = {
    "plain": [],
    "engine settings": [
        f"{VLLM}.additional_config.eplb_config.dynamic_eplb=False",
        f"{VLLM}.enable_expert_parallel=True",
    ],
}


def compose_config(*overrides):
    import verl
    from hydra import compose, initialize_config_dir

    folder = os.path.join(os.path.dirname(verl.__file__), "trainer", "config")
    with initialize_config_dir(folder, version_base=None):
        return compose("ppo_megatron_trainer", overrides=[*BASE, *overrides])


def start_worker(config, role="actor_rollout"):
    """Makes verl's worker; the process groups are there already, so that it does not look for a device."""
    from verl.workers.megatron_workers import ActorRolloutRefWorker

    return ActorRolloutRefWorker(config=config.actor_rollout_ref, role=role)


class RecordingRollout:
    """Takes the weights as an engine does, in place of which it stands: it keeps their names and sums."""

    def __init__(self):
        self.got = []

    async def resume(self, tags):
        pass

    async def update_weights(self, weights):
        self.got = [(name, weight.float().sum().item()) for name, weight in weights]


def weights_of_rollout_mode(model, reshard):
    """What the worker gives to its rollout at the change from training to generation."""
    worker = start_worker(compose_config())
    worker.bridge, worker.rollout, worker.ep_reshard = None, RecordingRollout(), reshard
    worker.actor = SimpleNamespace(actor_module=model.chunks)
    worker.actor_model_config, worker.tf_config = model.hf, model.tf
    worker.weight_converter, worker.layer_name_mapping = model.converter, NAMES
    worker.gen_random_states = torch.get_rng_state()
    asyncio.run(worker.rollout_mode())
    return worker.rollout.got


def rollout_mode():
    from verl.utils.ep_reshard import RankLayout
    from verl.utils.ep_reshard_exchange import ExpertReshard, expert_weights

    model = Model("qwen3_moe", experts=4)
    layout = RankLayout(stage=0, owns=(0, 1, 2, 3), holds=(0, 1, 2, 3), engine=(0,))
    reshard = ExpertReshard([(layout, expert_weights(model.chunks, model.tf))], num_experts=4)
    gathered, sent = weights_of_rollout_mode(model, None), weights_of_rollout_mode(model, reshard)
    return {
        "same": sorted(gathered) == sorted(sent),
        # The exchange yields experts before all else, so this tells which path was taken.
        "first": [got[0][0] for got in (gathered, sent)],
    }


def refusal(config, role="actor_rollout"):
    try:
        start_worker(config, role)
    except ValueError as error:
        return f"ValueError: {error}"
    return "not refused"


def engine_worker():
    """What verl/workers/roles, whose rollout takes upstream's generator, says of an engine with the switch."""
    from verl.workers.config import McoreEngineConfig
    from verl.workers.roles.actor import ActorWorker

    config = SimpleNamespace(
        engine=McoreEngineConfig(ep_alltoallv_reshard=True), model_config=None, optim=None, checkpoint=None, strategy=""
    )
    return message_of(lambda: ActorWorker._build_engine(SimpleNamespace(config=config)))


def on_the_driver(*overrides):
    from verl.utils.settings_checks import ep_alltoallv_reshard

    return message_of(lambda: ep_alltoallv_reshard.check(compose_config(*overrides)))


def declared():
    from verl.utils.config import omega_conf_to_dataclass

    def value(*overrides):
        config = compose_config(*overrides).actor_rollout_ref.actor.megatron
        return omega_conf_to_dataclass(config).ep_alltoallv_reshard

    return {"default": value(), "set": value(ON)}


def dense():
    from types import SimpleNamespace

    from verl.utils.ep_reshard_setup import build_expert_reshard

    return build_expert_reshard(SimpleNamespace(num_moe_experts=None), {}, None, None)


def refused_experts():
    """What is said of a model with grouped experts whose field is off, and of experts that are not as configured."""
    from verl.utils.ep_reshard_exchange import expert_weights
    from verl.utils.ep_reshard_setup import build_expert_reshard

    grouped, separate = Model("qwen3_moe_grouped", experts=4), Model("qwen3_moe", experts=4)
    off = compose_config(ON).actor_rollout_ref.actor.megatron
    said = {"grouped": message_of(lambda: build_expert_reshard(grouped.tf, off, None, grouped.chunks))}
    grouped.tf.moe_ffn_hidden_size += 8
    said["padded"] = message_of(lambda: expert_weights(grouped.chunks, grouped.tf))
    separate.tf.num_moe_experts = 8
    said["number"] = message_of(lambda: expert_weights(separate.chunks, separate.tf))
    return said | {"unknown name": unknown_name()}


def message_of(call):
    try:
        call()
    except ValueError as error:
        return str(error)
    return "not refused"


def unknown_name():
    """What is said of a model whose experts are layers of their own (Megatron's SequentialMLP)."""
    from verl.utils.ep_reshard_exchange import expert_weights

    model = torch.nn.Module()
    model.named_parameters = lambda: [
        ("decoder.layers.0.mlp.experts.local_experts.0.linear_fc1.weight", torch.zeros(1))
    ]
    return message_of(lambda: expert_weights([model], transformer_config=None))


def switched_on():
    refused = {case: refusal(compose_config(ON, *overrides)) for case, overrides in REFUSED.items()}
    refused["actor alone"] = refusal(compose_config(ON), role="actor")
    refused["reference"] = refusal(compose_config("actor_rollout_ref.ref.megatron.ep_alltoallv_reshard=True"))
    accepted = {case: refusal(compose_config(ON, *overrides)) for case, overrides in ACCEPTED.items()}
    accepted["reference of the same configuration"] = refusal(compose_config(ON), role="ref")
    elsewhere = {part: on_the_driver(override) for part, override in ELSEWHERE.items()}
    accepted["driver"], accepted["driver, off"] = on_the_driver(ON), on_the_driver()
    return {
        "declared": declared(),
        "refused": refused,
        "elsewhere": elsewhere | {"engine worker": engine_worker()},
        "wrongly refused": [case for case, answer in accepted.items() if answer != "not refused"],
        "dense": dense(),
        "rollout mode": rollout_mode(),
        "experts": refused_experts(),
    }


def main():
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    dist.init_process_group("gloo")
    mpu.initialize_model_parallel()
    megatron_cpu.adapt_megatron()
    # verl asks the module of its device for these.
    torch.cpu.manual_seed, torch.cpu.get_rng_state = torch.manual_seed, torch.get_rng_state
    torch.cpu.set_rng_state = torch.set_rng_state
    torch.cpu.memory_reserved = torch.cpu.memory_allocated = lambda *args: 0
    if sys.argv[1:] == ["off"]:
        start_worker(compose_config())
        result = {"worker": "started"}
    else:
        result = switched_on()
    dist.destroy_process_group()
    print(json.dumps(result))


main()
