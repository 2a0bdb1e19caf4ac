"""What the probes of recipes share: a configuration composed as an entry module composes it."""

import ast
import os
import re

from hydra import compose, initialize_config_dir


def composed(verl, job):
    """The configuration of a job {module, folder, config, overrides}, composed in its working directory."""
    os.chdir(os.path.join(verl, job["folder"]))
    with initialize_config_dir(config_folder(verl, job["module"]), version_base=None):
        return compose(job["config"], overrides=job["overrides"])


def config_folder(verl, module):
    """The folder that the module's own @hydra.main names, read from its source."""
    path = os.path.join(verl, *module.split(".")) + ".py"
    with open(path, encoding="utf-8") as file:
        source = file.read()
    call = re.search(r"@hydra\.main\((.*?)\)", source, re.DOTALL)
    arguments = ast.parse(f"f({call[1]})", mode="eval").body.keywords
    named = {argument.arg: ast.literal_eval(argument.value) for argument in arguments}
    return os.path.join(os.path.dirname(path), named["config_path"])
