"""Probe: writes tiny models of the architectures that verl's conversion script supports, in bf16.

Usage: tiny_moe_models.py FOLDER NAME...   Prints {name: folder}.
"""

import json
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, models
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    PreTrainedTokenizerFast,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

SHAPE = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 80,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "attention_dropout": 0.0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# ffn differs from hidden, so that a transposition too many does not fit.
EXPERTS = {"moe_intermediate_size": 24, "num_experts_per_tok": 2}
QWEN_EXPERTS = {"num_experts": 4, "decoder_sparse_step": 1, "num_hidden_layers": 2, **EXPERTS}
LATENT_ATTENTION = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "rope_scaling": None,
    "num_nextn_predict_layers": 0,
    # verl's config converter reads the coefficient of the auxiliary loss by this name.
    "aux_loss_alpha": 0.001,
}
YARN = {"rope_type": "yarn", "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
YARN |= {"beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}


def configuration(name):
    """The configuration of one tiny model; `NAME_large` has experts big enough for a measurement of memory."""
    if name == "qwen3":
        return Qwen3Config(**SHAPE, num_hidden_layers=2, head_dim=8)
    if name == "qwen3_moe":
        return Qwen3MoeConfig(**SHAPE, **QWEN_EXPERTS, head_dim=8, norm_topk_prob=True)
    if name == "qwen3_moe_large":
        large = {"hidden_size": 512, "moe_intermediate_size": 1024, "num_experts": 32, "head_dim": 128}
        return Qwen3MoeConfig(**(SHAPE | QWEN_EXPERTS | large), norm_topk_prob=True)
    if name == "qwen2_moe":
        return Qwen2MoeConfig(**SHAPE, **QWEN_EXPERTS, shared_expert_intermediate_size=48, qkv_bias=True)
    if name == "deepseek_v3":
        groups = {"n_group": 2, "topk_group": 1, "n_routed_experts": 4, "n_shared_experts": 1}
        layers = {"num_hidden_layers": 3, "first_k_dense_replace": 1}
        return DeepseekV3Config(**(SHAPE | EXPERTS | groups | layers | LATENT_ATTENTION))
    if name == "deepseek_v3_yarn":  # with all that a forward pass of DeepSeek-V3 goes through
        groups = {
            "n_group": 4,
            "topk_group": 1,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "routed_scaling_factor": 2.5,
        }
        layers = {"num_hidden_layers": 4, "first_k_dense_replace": 1, "v_head_dim": 12, "rope_scaling": YARN}
        return DeepseekV3Config(**(SHAPE | EXPERTS | LATENT_ATTENTION | groups | layers))
    raise LookupError(name)


def write(name, folder):
    """Random weights, all different from each other, and a tokenizer of as many words."""
    config = configuration(name)
    torch.manual_seed(len(name))
    model = AutoModelForCausalLM.from_config(config, torch_dtype=torch.bfloat16)
    for parameter in [*model.parameters(), *(buffer for key, buffer in model.named_buffers() if "e_score" in key)]:
        parameter.data.normal_()
    if name == "deepseek_v3_yarn":
        _calmed(model)
    model.config.architectures = [type(model).__name__]
    model.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"<{index}>": index for index in range(96)}, unk_token="<3>"))
    PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<0>", bos_token="<1>", eos_token="<2>", unk_token="<3>"
    ).save_pretrained(folder)


def _calmed(model):
    """Smaller weights, so that bf16 seldom turns another expert into the best one, and biases of one sign: Hugging Face's code
    counts experts of other groups as zero, and would take them before negative ones."""
    for parameter in model.parameters():
        parameter.data.mul_(0.3 if parameter.dim() > 1 else 1)
    for key, bias in model.named_buffers():
        if "e_score" in key:
            bias.abs_()


def main():
    root = Path(sys.argv[1])
    folders = {name: str(root / name) for name in sys.argv[2:]}
    for name, folder in folders.items():
        write(name, folder)
    print(json.dumps(folders))


if __name__ == "__main__":
    main()
