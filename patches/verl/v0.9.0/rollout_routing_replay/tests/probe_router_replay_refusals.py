"""Probe: what verl's own check of a configuration says before Ray starts. Usage: probe_router_replay_refusals.py CASE...   (a JSON list of overrides)

Prints for each case the error, null where the settings are taken.
"""

import json
import sys
from pathlib import Path

import ray
import verl
import verl.trainer.main_ppo as main_ppo
from hydra import compose, initialize_config_dir
from verl.utils.config import validate_config


def refused(settings):
    folder = Path(verl.__file__).parent / "trainer" / "config"
    name = "ppo_megatron_trainer" if "model_engine=megatron" in settings else "ppo_trainer"
    with initialize_config_dir(str(folder), version_base=None):
        config = compose(name, overrides=[one for one in settings if one != "model_engine=megatron"])
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
