"""Probe: what verl's entry point refuses before Ray starts. Usage: probe_skip_refusals.py CASE...   (a JSON list of Hydra overrides)

Prints for each case the error, null where the settings alone are not refused.
"""

import json
import sys
from pathlib import Path

import ray
import verl
import verl.trainer.main_ppo as main_ppo
from hydra import compose, initialize_config_dir
from verl.utils.skip_old_log_prob import check_configuration


def refused(settings):
    folder = Path(verl.__file__).parent / "trainer" / "config"
    with initialize_config_dir(str(folder), version_base=None):
        config = compose("ppo_trainer", overrides=settings)
    try:
        check_configuration(config)
    except ValueError as error:
        try:
            main_ppo.main.__wrapped__(config)
        except ValueError as at_start:
            assert str(at_start) == str(error) and not ray.is_initialized()
            return str(error)
        raise AssertionError(f"the entry point does not refuse: {error}") from None
    return None


print(json.dumps([refused(json.loads(case)) for case in sys.argv[1:]]))
