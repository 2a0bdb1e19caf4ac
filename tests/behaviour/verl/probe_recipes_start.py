"""Probe: what the patched verl itself checks of a configuration before any worker starts, for every recipe.

Usage: probe_recipes_start.py VERL JOBS, as probe_recipes.py. For each job: verl's validate_config, the dataclasses of
actor and rollout with the checks in their constructors, and those of the features: data_rebalance and skip_old_log_prob on
the trainer that the entry module makes, ep_alltoallv_reshard, and the ranks of the rollout's shards. Prints null, or what
was refused and by whom.
"""

import json
import os
import sys

from recipe_compose import composed
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
from verl.utils.config import omega_conf_to_dataclass, validate_config
from verl.utils.ep_reshard_setup import check_config
from verl.workers.rollout.data_parallel import ranks_per_shard


def main():
    verl = os.path.abspath(sys.argv[1])
    with open(sys.argv[2], encoding="utf-8") as file:
        jobs = json.load(file)
    sys.path.insert(0, verl)  # recipe/ is no package of an installation
    print(json.dumps([refusal(verl, job) for job in jobs]))


def refusal(verl, job):
    config = composed(verl, job)
    for name, check in CHECKS.items():
        try:
            check(config, job)
        except Exception as error:
            return f"{name}: {type(error).__name__}: {error}"
    return None


def of_verl(config, job):
    actor = config.actor_rollout_ref.actor
    with_reference = actor.use_kl_loss or config.algorithm.use_kl_in_reward
    validate_config(config, use_reference_policy=with_reference, use_critic=False)


def of_the_rollout(config, job):
    rollout = omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    ranks_per_shard(rollout, config.trainer.nnodes * config.trainer.n_gpus_per_node)


def of_the_trainer(config, job):
    """The checks of RayPPOTrainer.__init__ that need the class and the configuration only."""
    trainer = object.__new__(trainer_class(job["module"]))
    trainer.config = config
    trainer._check_data_rebalance()
    if config.actor_rollout_ref.actor.skip_old_log_prob:
        from verl.utils.skip_old_log_prob import check_trainer

        check_trainer(trainer)


def trainer_class(module):
    if module != "recipe.dapo.main_dapo":
        return RayPPOTrainer
    from recipe.dapo.dapo_ray_trainer import RayDAPOTrainer

    return RayDAPOTrainer


def of_the_reshard(config, job):
    check_config(config.actor_rollout_ref, "actor_rollout_ref")


CHECKS = {"verl": of_verl, "rollout": of_the_rollout, "trainer": of_the_trainer, "reshard": of_the_reshard}

main()
