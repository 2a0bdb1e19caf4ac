"""Probe: RayDAPOTrainer.fit with and without data_rebalance. Usage: probe_rebalance_dapo.py MODEL"""

import json
import os
import sys

import trainer_in_process as tip

# isort: split
import torch
import verl
from rebalance_engines import attempt, run

MODEL = sys.argv[1]
ON = "actor_rollout_ref.rollout.data_rebalance=True"
DYNAMIC = ("algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=seq_reward")


def compose(*overrides):
    """Four prompts a generation batch, three samples each, one step (of two generation batches, when filtered)."""
    folder = os.path.join(os.path.dirname(os.path.dirname(verl.__file__)), "recipe", "dapo", "config")
    settings = ["data.train_batch_size=4", "actor_rollout_ref.rollout.n=3", "trainer.balance_batch=False"]
    settings += ["trainer.total_training_steps=1", *overrides]
    return tip.compose_config(MODEL, *settings, name="dapo_trainer", folder=folder)


def half_too_easy(batch, return_dict=False):
    """Every second prompt scores the same for all samples, so that dynamic sampling drops it."""
    result = tip.reward(batch, return_dict=True)
    even = torch.tensor([row["index"] % 2 == 0 for row in batch.non_tensor_batch["extra_info"]])
    result["reward_tensor"][even, -1] = 1.0
    return result if return_dict else result["reward_tensor"]


def fitted(*overrides):
    from recipe.dapo.dapo_ray_trainer import RayDAPOTrainer

    return run(compose(*overrides), engines=4, trainer=RayDAPOTrainer, reward_fn=half_too_easy)


def refused():
    from recipe.dapo.dapo_ray_trainer import RayDAPOTrainer

    settings = {
        "async": [ON, "actor_rollout_ref.rollout.mode=async"],
        "remax": [ON, "algorithm.adv_estimator=remax"],
        "skip_rollout": [ON, "actor_rollout_ref.rollout.skip_rollout=True"],
    }
    return {
        name: attempt(lambda own=own: bool(tip.make_trainer(compose(*own), trainer=RayDAPOTrainer)))
        for name, own in settings.items()
    }


def spin():
    """What recipe/spin, whose trainer spreads nothing, says of the switch, and whether it goes on to Ray without."""
    import recipe.spin.main_spin as main_spin

    def came_to_ray(*args, **kwargs):
        raise ConnectionError("came to Ray")

    folder = os.path.join(os.path.dirname(os.path.dirname(verl.__file__)), "recipe", "spin", "config")
    main_spin.ray.init = came_to_ray

    def begun(*overrides):
        main_spin.run_ppo(tip.compose_config(MODEL, *overrides, name="spin_trainer", folder=folder))

    return {"on": attempt(lambda: begun(ON)), "off": attempt(begun)}


def megatron_config():
    """The field in the recipe's other configuration."""
    folder = os.path.join(os.path.dirname(os.path.dirname(verl.__file__)), "recipe", "dapo", "config")
    config = tip.compose_config(MODEL, ON, name="dapo_megatron_trainer", folder=folder)
    return config.actor_rollout_ref.rollout.data_rebalance


CASES = {
    "plain": fitted,
    "plain_on": lambda: fitted(ON),
    "dynamic": lambda: fitted(*DYNAMIC),
    "dynamic_on": lambda: fitted(ON, *DYNAMIC),
    "remax": lambda: fitted("algorithm.adv_estimator=remax"),
    "refused": refused,
    "spin": spin,
    "megatron_config": megatron_config,
}
print(json.dumps({name: attempt(case) for name, case in CASES.items()}))
