"""Probe: recipe/dapo's RayDAPOTrainer.fit, and the other trainers of recipe/, which git's tree has and the sdist has not.

Usage: probe_skip_dapo.py MODEL off | on
"""

import importlib
import json
import sys
from pathlib import Path

import trainer_in_process as tip
from probe_skip_common import ACTOR, SKIP, UnevenWorkers, compare, refusal, run

MODEL, MODE = sys.argv[1:]
FILTERED = ["algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=seq_reward"]
# Two generated batches make one update: of each batch the groups whose rewards differ are kept, and then four of them.
CASES = {
    "plain": [],
    "entropy_and_kl_loss": [f"{ACTOR}.entropy_coeff=0.01", f"{ACTOR}.use_kl_loss=True"],
    "filtered": [*FILTERED, "data.gen_batch_size=2", "trainer.total_training_steps=1"],
}
OTHERS = {
    "prime": ("recipe.prime.prime_ray_trainer", "RayPRIMETrainer"),
    "entropy": ("recipe.entropy.entropy_ray_trainer", "RayEntropyTrainer"),
    "sppo": ("recipe.sppo.sppo_ray_trainer", "RaySPPOTrainer"),
    "one_step_off_policy": ("recipe.one_step_off_policy.ray_trainer", "OneStepOffRayTrainer"),
}


def make_config(*overrides):
    import verl

    folder = Path(verl.__file__).parents[1] / "recipe" / "dapo" / "config"
    return tip.compose_config(MODEL, *overrides, name="dapo_trainer", folder=folder)


def make_workers(config):
    return UnevenWorkers(config, engines=2)


def dapo():
    from recipe.dapo.dapo_ray_trainer import RayDAPOTrainer

    return RayDAPOTrainer


def made(overrides, trainer):
    return refusal(lambda: tip.make_trainer(make_config(SKIP, *overrides), trainer=trainer))


def other(module, name):
    try:
        trainer = getattr(importlib.import_module(module), name)
    except ImportError as error:
        return f"not importable: {error}"
    overrides = ["actor_rollout_ref.hybrid_engine=False"] if name == "OneStepOffRayTrainer" else []
    return made(overrides, trainer)


def refusals():
    from verl.utils.config import omega_conf_to_dataclass

    filtered = [*FILTERED, "data.gen_batch_size=8"]
    return {
        "filtered": made(filtered, dapo()),
        "unfiltered": made(["data.gen_batch_size=8"], dapo()),
        "two_mini_batches": made([*filtered, "data.train_batch_size=8"], dapo()),
        "kl_in_reward": made(["algorithm.use_kl_in_reward=True"], dapo()),
        "others": {name: other(*where) for name, where in OTHERS.items()},
        "spin_actor": _actor("recipe.spin.dp_actor", "SPINDataParallelPPOActor"),
        "composed": omega_conf_to_dataclass(make_config(SKIP).actor_rollout_ref.actor).skip_old_log_prob,
    }


def _actor(module, name):
    workers = make_workers(make_config(SKIP))
    actor = workers.worker.actor
    own = getattr(importlib.import_module(module), name)
    return refusal(lambda: own(actor.config, workers.model, actor.actor_optimizer))


def main():
    if MODE == "off":
        return {name: run(make_config, make_workers, CASES[name], dapo())[1] for name in ("plain", "filtered")}
    runs = {name: compare(make_config, make_workers, overrides, dapo()) for name, overrides in CASES.items()}
    return {"runs": runs, "refusals": refusals()}


print(json.dumps(main()))
