"""Probe: writes a tiny Qwen3-MoE whose w13 is not square. Usage: probe_moe_update_model.py MODEL FOLDER"""

import json
import sys

import torch
from transformers import AutoConfig, AutoTokenizer, Qwen3MoeForCausalLM

MODEL, FOLDER = sys.argv[1:]
torch.manual_seed(0)
config = AutoConfig.from_pretrained(MODEL)
config.moe_intermediate_size = 48
Qwen3MoeForCausalLM(config).float().save_pretrained(FOLDER)
AutoTokenizer.from_pretrained(MODEL).save_pretrained(FOLDER)
print(json.dumps([2 * config.moe_intermediate_size, config.hidden_size]))
