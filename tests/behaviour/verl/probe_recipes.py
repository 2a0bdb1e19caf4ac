"""Probe: composes the overrides of recipes with Hydra against verl's configuration files, as its entry modules do.

Usage: probe_recipes.py VERL JOBS. JOBS is a JSON file with a list of {module, folder, config, overrides, keys}. For each
the current folder is verl's, or the one below it that the recipe names, and the configuration is looked for where the
module's own @hydra.main says; no module of verl is imported. Prints for each job {"error": null or text, "values": {key:
value}}, with the values of the keys that were asked for; null for one that is not there.
"""

import ast
import json
import os
import re
import sys

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException


def main():
    verl = os.path.abspath(sys.argv[1])
    with open(sys.argv[2], encoding="utf-8") as file:
        jobs = json.load(file)
    print(json.dumps([composed(verl, job) for job in jobs]))


def composed(verl, job):
    os.chdir(os.path.join(verl, job["folder"]))
    folder = config_folder(verl, job["module"])
    try:
        with initialize_config_dir(folder, version_base=None):
            config = compose(job["config"], overrides=job["overrides"])
        values = {key: OmegaConf.select(config, key) for key in job["keys"]}
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        return {"error": " ".join(str(error).split()) + cause(error), "values": {}}
    return {"error": None, "values": {key: plain(value) for key, value in values.items()}}


def cause(error):
    """Hydra says which override it is, and only its cause what is wrong with it."""
    return "" if error.__cause__ is None else " " + " ".join(str(error.__cause__).split())


def config_folder(verl, module):
    """The folder that the module's own @hydra.main names, read from its source."""
    path = os.path.join(verl, *module.split(".")) + ".py"
    with open(path, encoding="utf-8") as file:
        source = file.read()
    call = re.search(r"@hydra\.main\((.*?)\)", source, re.DOTALL)
    arguments = ast.parse(f"f({call[1]})", mode="eval").body.keywords
    named = {argument.arg: ast.literal_eval(argument.value) for argument in arguments}
    return os.path.join(os.path.dirname(path), named["config_path"])


def plain(value):
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


main()
