"""Probe: what verl's check on the driver says of recipes, and of each of their switches written in ways that mean off.

Usage: probe_settings_checks.py VERL JOBS. JOBS is a file with a JSON object: "jobs", as for probe_recipes.py, each with the
"switches" of the recipe; "spellings", texts as on a command line. Prints, for each job, what is said of it as it is, of
its switches by key and spelling, and of every boolean that the patches declare, by key and by spelling or value. With no
spellings only the first.
"""

import json
import os
import sys

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf, open_dict
from recipe_compose import composed
from verl.utils import settings_checks
from verl.utils.settings_checks import check_settings, setting

ABSENT = object()


def main():
    verl = os.path.abspath(sys.argv[1])
    with open(sys.argv[2], encoding="utf-8") as file:
        given = json.load(file)
    sys.path.insert(0, verl)  # recipe/ is no package of an installation
    booleans = [key for module in settings_checks._modules() for key in module.SWITCHES]
    print(
        json.dumps(
            [of_job(composed(verl, job), job["switches"], booleans, given["spellings"]) for job in given["jobs"]]
        )
    )


def of_job(config, switches, booleans, spellings):
    # A section that this configuration lacks (of Megatron, with FSDP) has no such boolean.
    booleans = [key for key in booleans if setting(config, key, ABSENT) is not ABSENT]
    if not spellings:
        return {"as it is": said(config)}
    return {
        "as it is": said(config),
        "switches": {key: {text: with_value(config, key, text) for text in spellings} for key in switches},
        "booleans": {
            key: {text: with_value(config, key, text) for text in [*spellings, "null", "1", "False"]}
            for key in booleans
        },
    }


def with_value(config, key, text):
    """What is said when the key has the value that Hydra makes of the text."""
    value = OverridesParser.create().parse_override(f"{key}={text}").value()
    section, _, name = key.rpartition(".")
    node = OmegaConf.select(config, section)
    with open_dict(config):
        before = raw(node._get_node(name))
        node[name] = value
        try:
            return said(config)
        finally:
            node[name] = before


def raw(node):
    """The value as it was written, an interpolation as such."""
    return OmegaConf.to_container(node) if OmegaConf.is_config(node) else node._value()


def said(config):
    try:
        check_settings(config)
    except ValueError as error:
        return str(error)
    return None


main()
