"""Verl's entry points up to where Ray would start, for probes of what they refuse. The first word of settings may be one of ENTRIES."""

import importlib
from pathlib import Path

import ray
import verl
from hydra import compose, initialize_config_dir

ENTRIES = {
    "main_ppo": ("verl.trainer.main_ppo", "ppo_trainer"),
    "main_ppo megatron": ("verl.trainer.main_ppo", "ppo_megatron_trainer"),
    "one_step_off_policy": ("verl.experimental.one_step_off_policy.main_ppo", "one_step_off_ppo_trainer"),
    "fully_async_policy": ("verl.experimental.fully_async_policy.fully_async_main", "fully_async_ppo_trainer"),
    "fully_async_policy megatron": (
        "verl.experimental.fully_async_policy.fully_async_main",
        "fully_async_ppo_megatron_trainer",
    ),
}


class RayStarts(Exception):
    """Nothing was refused."""


def _starts(**given):
    raise RayStarts


def composed(settings):
    """The entry point's module and its configuration."""
    entry, overrides = (settings[0], settings[1:]) if settings and settings[0] in ENTRIES else ("main_ppo", settings)
    module = importlib.import_module(ENTRIES[entry][0])
    search = f"hydra.searchpath=[file://{Path(verl.__file__).parent}/trainer/config]"
    with initialize_config_dir(str(Path(module.__file__).parent / "config"), version_base=None):
        return module, compose(ENTRIES[entry][1], overrides=[*overrides, search])


def refused(settings):
    """The error with which the entry point ends, None where Ray would start."""
    module, config = composed(settings)
    ray.init = _starts
    try:
        module.main.__wrapped__(config)
    except ValueError as error:
        return str(error)
    except RayStarts:
        return None
    raise AssertionError("the entry point has neither refused nor started Ray")
