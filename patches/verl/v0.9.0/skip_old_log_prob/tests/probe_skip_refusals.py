"""Probe: what verl's entry points refuse before Ray starts, and which models `check_model` refuses. Usage: probe_skip_refusals.py CASE...

A CASE is a JSON list of overrides, of entry_points.py. Prints for each the error, null where the settings alone are not refused; then
for each of MODELS what is said to it.
"""

import json
import sys
from types import SimpleNamespace

import torch
from entry_points import refused
from verl.utils.skip_old_log_prob import check_model


def model(rate):
    return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(rate))


# A chunk a virtual pipeline stage, as Megatron's engine has them; FSDP's has one module.
MODELS = {
    "clean": [model(0.0), model(0.0)],
    "first": [model(0.1), model(0.0)],
    "last": [model(0.0), model(0.1)],
    "alone": model(0.1),
}


def said(module):
    try:
        check_model(SimpleNamespace(module=module))
    except ValueError as error:
        return str(error)
    return None


settings = [refused(json.loads(case)) for case in sys.argv[1:]]
print(json.dumps({"settings": settings, "models": {name: said(module) for name, module in MODELS.items()}}))
