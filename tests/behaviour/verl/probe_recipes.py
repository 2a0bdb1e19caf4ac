"""Probe: composes the overrides of recipes with Hydra against verl's configuration files, as its entry modules do.

Usage: probe_recipes.py VERL JOBS. JOBS is a JSON file with a list of {module, folder, config, overrides, keys}. The current
folder is verl's, or the one below it that the recipe names; the configuration is looked for where the module's own
@hydra.main says; no module of verl is imported. Prints for each job {"error": null or text, "values": {key: value}}, with
the values of the keys that were asked for; null for one that is not there.
"""

import json
import os
import sys

from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from recipe_compose import composed


def main():
    verl = os.path.abspath(sys.argv[1])
    with open(sys.argv[2], encoding="utf-8") as file:
        jobs = json.load(file)
    print(json.dumps([looked_at(verl, job) for job in jobs]))


def looked_at(verl, job):
    try:
        config = composed(verl, job)
        values = {key: OmegaConf.select(config, key) for key in job["keys"]}
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        return {"error": " ".join(str(error).split()) + cause(error), "values": {}}
    return {"error": None, "values": {key: plain(value) for key, value in values.items()}}


def cause(error):
    """Hydra says which override it is, and only its cause what is wrong with it."""
    return "" if error.__cause__ is None else " " + " ".join(str(error.__cause__).split())


def plain(value):
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


main()
