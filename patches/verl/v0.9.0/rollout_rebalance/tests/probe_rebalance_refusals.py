"""Probe: what verl's own check of a configuration says before Ray starts. Usage: probe_rebalance_refusals.py CASE...   (a JSON list of overrides)

Prints for each case the error, null where the settings are taken. "another balancer" is what a manager says that has one of its own.
"""

import asyncio
import json
import sys
from pathlib import Path

import ray
import verl
import verl.trainer.main_ppo as main_ppo
from hydra import compose, initialize_config_dir
from verl.utils.config import validate_config
from verl.workers.rollout import llm_server

COMMON = ["actor_rollout_ref.actor.use_dynamic_bsz=True", "actor_rollout_ref.rollout.name=vllm"]
COMMON += ["actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True", "algorithm.adv_estimator=grpo"]
ANOTHER = "another balancer"


class Another(llm_server.GlobalRequestLoadBalancer):
    """A recipe's own."""


def refused(settings):
    folder = Path(verl.__file__).parent / "trainer" / "config"
    with initialize_config_dir(str(folder), version_base=None):
        config = compose("ppo_trainer", overrides=[*COMMON, *(one for one in settings if one != ANOTHER)])
    if ANOTHER in settings:
        manager = llm_server.LLMServerManager.__new__(llm_server.LLMServerManager)
        manager.rollout_config, manager._load_balancer_cls = config.actor_rollout_ref.rollout, Another
        manager.server_addresses = manager.server_handles = []
        try:
            asyncio.run(manager._init_global_load_balancer())
        except ValueError as error:
            assert not ray.is_initialized()
            return str(error)
        return None
    try:
        validate_config(config, use_reference_policy=False, use_critic=False)
    except ValueError as error:
        try:
            main_ppo.main.__wrapped__(config)
        except ValueError as at_start:
            assert str(at_start) == str(error) and not ray.is_initialized()
            return str(error)
        raise AssertionError(f"the entry point does not refuse: {error}") from None
    return None


print(json.dumps([refused(json.loads(case)) for case in sys.argv[1:]]))
