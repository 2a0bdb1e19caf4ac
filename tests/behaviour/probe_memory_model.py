"""Probe: builds models with transformers on the meta device, and counts. Usage: probe_memory_model.py JOBS.json

A job is a config.json. For each: the parameters of the whole model by kind of tensor, which takes no memory, whatever its size.
"""

import json
import re
import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

KINDS = (
    ("embedding", r"embed_tokens"),
    ("head", r"lm_head"),
    ("norms", r"norm"),
    ("gate", r"mlp\.gate\.weight"),
    ("shared experts", r"mlp\.shared_experts\."),
    ("experts", r"mlp\.experts\."),
    ("mlp", r"mlp\."),
    ("output", r"self_attn\.o_proj"),
    ("qkv", r"self_attn\.(q|k|v|kv)_"),
)


def counted(config: dict) -> dict:
    values = dict(config)
    known = AutoConfig.for_model(values.pop("model_type"), **values)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(known, dtype=torch.bfloat16)
    found: dict[str, int] = {}
    for name, parameter in model.named_parameters():  # a tied head comes once
        kind = next(kind for kind, pattern in KINDS if re.search(pattern, name))
        found[kind] = found.get(kind, 0) + parameter.numel()
    return found


def main() -> None:
    jobs = json.loads(Path(sys.argv[1]).read_text())
    print(json.dumps([counted(job) for job in jobs]))


main()
