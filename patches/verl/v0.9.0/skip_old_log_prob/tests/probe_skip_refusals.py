"""Probe: what verl's entry points refuse before Ray starts, and which models `check_model` refuses. Usage: probe_skip_refusals.py CASE...

A CASE is a JSON list of overrides, of entry_points.py. Prints for each the error, null where the settings alone are not refused; then
for each of MODELS what is said to it.
"""

import json
import sys
from types import SimpleNamespace

import torch
from entry_points import refused
from transformers import OPTConfig, OPTForCausalLM, SeedOssConfig, SeedOssForCausalLM
from verl.utils.skip_old_log_prob import check_model

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def model(rate):
    return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(rate))


# A chunk a virtual pipeline stage, as Megatron's engine has them; FSDP's has one module.
MODELS = {
    "clean": [model(0.0), model(0.0)],
    "first": [model(0.1), model(0.0)],
    "last": [model(0.0), model(0.1)],
    "alone": model(0.1),
    # Models of Hugging Face's whose dropout is no module: a number that a function is called with.
    "Seed-OSS": SeedOssForCausalLM(SeedOssConfig(**SIZES, head_dim=16, attention_dropout=0.0)),
    "OPT": OPTForCausalLM(
        OPTConfig(hidden_size=32, ffn_dim=64, word_embed_proj_dim=32, num_hidden_layers=1, num_attention_heads=2)
    ),
    "without": SeedOssForCausalLM(SeedOssConfig(**SIZES, head_dim=16, attention_dropout=0.0, residual_dropout=0.0)),
}


def said(module):
    try:
        check_model(SimpleNamespace(module=module))
    except ValueError as error:
        return str(error)
    return None


settings = [refused(json.loads(case)) for case in sys.argv[1:]]
print(json.dumps({"settings": settings, "models": {name: said(module) for name, module in MODELS.items()}}))
