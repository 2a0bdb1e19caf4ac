"""Probe: what verl from v0.9.0 on checks of a recipe's configuration before any worker starts, and the keys that it has.

Usage: probe_recipes_v1.py VERL JOBS, as probe_recipes.py. For each job what main_ppo checks (skip_old_log_prob and router replay in
run_ppo, and validate_config, which makes the actor's class), the rollout's class, and the reward manager with the checks in their
constructors. Prints
{"error": null or who refused what, "values": {key: value}} for each.
"""

import json
import os
import sys

from hydra.errors import HydraException
from omegaconf import OmegaConf
from recipe_compose import composed
from verl.experimental.reward_loop.reward_manager import get_reward_manager_cls
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import omega_conf_to_dataclass, validate_config
from verl.utils.router_replay_checks import check_router_replay
from verl.utils.skip_old_log_prob import check_configuration


def main():
    verl = os.path.abspath(sys.argv[1])
    with open(sys.argv[2], encoding="utf-8") as file:
        jobs = json.load(file)
    print(json.dumps([looked_at(verl, job) for job in jobs]))


def looked_at(verl, job):
    try:
        config = composed(verl, job)
    except HydraException as error:
        return {"error": f"hydra: {error} {error.__cause__ or ''}", "values": {}}
    values = {key: OmegaConf.select(config, key) for key in job["keys"]}
    plain = {k: OmegaConf.to_container(v, resolve=True) if OmegaConf.is_config(v) else v for k, v in values.items()}
    for name, check in CHECKS.items():
        try:
            check(config)
        except Exception as error:
            return {"error": f"{name}: {type(error).__name__}: {error}", "values": plain}
    return {"error": None, "values": plain}


def of_verl(config):
    validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))


def of_the_rollout(config):
    omega_conf_to_dataclass(config.actor_rollout_ref.rollout)


def of_the_reward(config):
    get_reward_manager_cls(config.reward.reward_manager.name)(config, tokenizer=None, compute_score=None)


CHECKS = {
    "skip_old_log_prob": check_configuration,
    "router_replay": check_router_replay,
    "verl": of_verl,
    "rollout": of_the_rollout,
    "reward": of_the_reward,
}

main()
