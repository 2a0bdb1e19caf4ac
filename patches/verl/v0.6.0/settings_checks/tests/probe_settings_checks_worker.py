"""Probe: what the workers of actor and rollout say of a switch, when another entry module than main_ppo makes them.

Usage: probe_settings_checks_worker.py MODEL. Prints the error of each worker's own constructor, with show_progress as
given, or how far it came: without Ray, its base class finds no rank in the environment.
"""

import importlib
import json
import sys

from omegaconf import open_dict
from rollout_config import compose_config

TRAINERS = {"fsdp": "ppo_trainer", "megatron": "ppo_megatron_trainer"}


def said(kind, value):
    config = compose_config(sys.argv[1], trainer=TRAINERS[kind]).actor_rollout_ref
    with open_dict(config):
        config.rollout.show_progress = value
    worker = importlib.import_module(f"verl.workers.{kind}_workers").ActorRolloutRefWorker
    try:
        worker(config, role="actor_rollout")
    except Exception as error:  # the refusal, or what comes of a worker without Ray
        return f"{type(error).__name__}: {error}"
    return None


print(json.dumps({kind: {str(value): said(kind, value) for value in ("off", False)} for kind in TRAINERS}))
