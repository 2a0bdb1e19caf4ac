"""Probe: what skip_old_log_prob refuses, by the trainer's own `__init__` and by the actor's. Prints the messages.

Usage: probe_skip_refusals.py MODEL
"""

import json
import sys

import torch
import trainer_in_process as tip
from probe_skip_common import ACTOR, ROLLOUT, SKIP, UnevenWorkers, refusal

MODEL = sys.argv[1]
SETTINGS = {
    "two_epochs": [f"{ACTOR}.ppo_epochs=2"],
    "two_mini_batches": [f"{ACTOR}.ppo_mini_batch_size=2"],
    "larger_mini_batch": [f"{ACTOR}.ppo_mini_batch_size=8"],
    "generated_more": ["+data.gen_batch_size=8"],
    "kl_in_reward": ["algorithm.use_kl_in_reward=True"],
    "rollout_is": ["algorithm.rollout_is=True"],
    "rollout_is_threshold": ["algorithm.rollout_is_threshold=2.0"],
    "rollout_log_probs": [f"{ROLLOUT}.calculate_log_probs=True"],
    "pf_ppo": ["algorithm.use_pf_ppo=True"],
    "strategy": [f"{ACTOR}.strategy=torchtitan"],
    "not_a_boolean": [f"{ACTOR}.skip_old_log_prob=maybe"],
}
NOISES = ("mixtral", "router_jitter_noise", "input_jitter_noise")
ALLOWED = {
    "group_normalised": [f"{ROLLOUT}.n=4"],
    "generated_as_many": ["+data.gen_batch_size=4"],
    "kl_loss": [f"{ACTOR}.use_kl_loss=True"],
    "asynchronous": [f"{ROLLOUT}.mode=async"],
}


def made(overrides, trainer=None, name="ppo_trainer"):
    return refusal(lambda: tip.make_trainer(tip.compose_config(MODEL, SKIP, *overrides, name=name), trainer=trainer))


def of_trainers():
    """Of the settings, with the PPO trainer; and of a trainer with a `fit` that does not know the switch."""
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer

    class OwnFit(RayPPOTrainer):
        def fit(self):
            super().fit()

    class OwnInit(OwnFit):
        """As recipe/one_step_off_policy: `__init__` is not inherited, what makes the data loaders is."""

        def __init__(self, config, **kwargs):
            self.config = config
            self._create_dataloader(None, None, None, None)

    return {
        "settings": {name: made(overrides) for name, overrides in SETTINGS.items()},
        "allowed": {name: made(overrides) for name, overrides in ALLOWED.items()},
        "megatron_shuffle": made([f"{ACTOR}.shuffle=True"], name="ppo_megatron_trainer"),
        "fit_of_its_own": made([], trainer=OwnFit),
        "init_of_its_own": made([], trainer=OwnInit),
    }


def of_actors():
    """What the FSDP actor refuses by itself, and that nothing was trained when it did."""
    from verl.workers.actor.dp_actor import DataParallelPPOActor

    class OwnUpdate(DataParallelPPOActor):
        def update_policy(self, data):
            raise AssertionError("not reached")

    workers = UnevenWorkers(tip.compose_config(MODEL, SKIP))
    actor, start = workers.worker.actor, workers.weights()
    with_dropout = torch.nn.Sequential(workers.model, torch.nn.Dropout(0.1))
    messages = {
        "old_log_probs": refusal(lambda: actor.update_policy(_batch(8, "old_log_probs"))),
        "two_mini_batches": refusal(lambda: actor.update_policy(_batch(16))),
        "subclass": refusal(lambda: OwnUpdate(actor.config, workers.model, actor.actor_optimizer)),
        "dropout": refusal(lambda: DataParallelPPOActor(actor.config, with_dropout, actor.actor_optimizer)),
        "attention_dropout": refusal(lambda: _with_attention_dropout(workers, actor)),
        "router_noise": [refusal(lambda name=name: _with_router_noise(actor, name)) for name in NOISES],
        "reference_policy": refusal(lambda: DataParallelPPOActor(actor.config, with_dropout, None)),
        "engine_worker": refusal(lambda: _engine_worker(actor.config)),
    }
    unchanged = all(torch.equal(old, new) for old, new in zip(start, workers.weights(), strict=True))
    return messages | {"unchanged": unchanged}


def _with_attention_dropout(workers, actor):
    workers.model.model.layers[1].self_attn.attention_dropout = 0.1
    return type(actor)(actor.config, workers.model, actor.actor_optimizer)


def _with_router_noise(actor, name):
    """A model with a Mixtral or PhiMoE block of Hugging Face's own making, whose number `name` is not 0."""
    from transformers.models.mixtral import MixtralConfig, modeling_mixtral
    from transformers.models.phimoe import PhimoeConfig, modeling_phimoe

    config, block = MixtralConfig, modeling_mixtral.MixtralSparseMoeBlock
    if name != "mixtral":
        config, block = PhimoeConfig, modeling_phimoe.PhimoeSparseMoeBlock
    noise = {"router_jitter_noise": 0.0, "input_jitter_noise": 0.0}
    noise["router_jitter_noise" if name == "mixtral" else name] = 0.1
    # Alone: the workers' model has kept the dropout that another case gave it.
    model = torch.nn.Sequential(block(config(hidden_size=8, intermediate_size=8, **noise)))
    return type(actor)(actor.config, model, actor.actor_optimizer)


def _engine_worker(config):
    from verl.workers.roles import ActorWorker

    return ActorWorker(config)


def _batch(rows, *more):
    from verl import DataProto

    keys = ["responses", "response_mask", "input_ids", "attention_mask", "position_ids", "advantages", *more]
    return DataProto.from_dict({key: torch.zeros(rows, 2) for key in keys}, meta_info={"temperature": 1.0})


def composed():
    """The switch as a field of the actor's configuration, set from the command line in each of the trainers' files."""
    from verl.utils.config import omega_conf_to_dataclass

    names = ("ppo_trainer", "ppo_megatron_trainer")
    actors = {name: tip.compose_config(MODEL, SKIP, name=name).actor_rollout_ref.actor for name in names}
    default = tip.compose_config(MODEL).actor_rollout_ref.actor
    return {name: omega_conf_to_dataclass(actor).skip_old_log_prob for name, actor in actors.items()} | {
        "default": omega_conf_to_dataclass(default).skip_old_log_prob,
        "generated": {name: _generated(name) for name in names},
    }


def _generated(name):
    from pathlib import Path

    import verl
    from omegaconf import OmegaConf

    file = Path(verl.__file__).parent / "trainer" / "config" / f"_generated_{name}.yaml"
    return OmegaConf.load(file).actor_rollout_ref.actor.skip_old_log_prob


print(json.dumps({"trainers": of_trainers(), "actors": of_actors(), "composed": composed()}))
