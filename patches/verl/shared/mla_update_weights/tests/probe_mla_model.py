"""Probe: writes a tiny DeepSeek-V3: latent attention, yarn, a dense layer and two of experts in groups, with a shared expert.

Usage: probe_mla_model.py TOKENIZER FOLDER
"""

import json
import sys

import torch
from transformers import AutoTokenizer, DeepseekV3Config, DeepseekV3ForCausalLM

TOKENIZER, FOLDER = sys.argv[1:]
torch.manual_seed(0)
config = DeepseekV3Config(
    vocab_size=512,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=3,
    first_k_dense_replace=1,
    num_attention_heads=4,
    num_key_value_heads=4,
    # All widths differ, so that no product fits by chance.
    q_lora_rank=24,
    kv_lora_rank=40,
    qk_nope_head_dim=16,
    qk_rope_head_dim=8,
    v_head_dim=12,
    n_routed_experts=8,
    n_shared_experts=1,
    num_experts_per_tok=2,
    n_group=4,
    topk_group=1,
    # As published; vllm reads them, Hugging Face's own code does not.
    topk_method="noaux_tc",
    scoring_func="sigmoid",
    moe_intermediate_size=48,
    max_position_embeddings=512,
    rope_scaling={
        "rope_type": "yarn",
        "type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 128,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
    initializer_range=0.1,
    tie_word_embeddings=False,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
model = DeepseekV3ForCausalLM(config).float()
for name, buffer in model.named_buffers():
    if "e_score_correction_bias" in name:
        buffer.uniform_()  # Hugging Face's code counts experts of other groups as zero, and would take them before negative ones
model.save_pretrained(FOLDER)
AutoTokenizer.from_pretrained(TOKENIZER).save_pretrained(FOLDER)
print(json.dumps(sum(parameter.numel() for parameter in model.parameters())))
