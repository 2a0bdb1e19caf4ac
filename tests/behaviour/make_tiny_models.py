"""Probe: writes the tiny models of models.py. Usage: make_tiny_models.py FOLDER"""

import json
import sys
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts/demo"))

from tiny_model import SPECIAL, character_tokenizer

VOCABULARY = 512
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {
    "moe_intermediate_size": 32,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
}


def tokenizer() -> PreTrainedTokenizerFast:
    """One token a printable ASCII character; the rest of the vocabulary are fillers."""
    characters = [chr(code) for code in range(32, 127)]
    fillers = [f"<t{index}>" for index in range(len(SPECIAL) + len(characters), VOCABULARY)]
    return character_tokenizer(characters + fillers, CHAT_TEMPLATE)


def main() -> None:
    root = Path(sys.argv[1])
    folders = {name: str(root / name) for name in ("qwen3", "qwen3_moe")}
    for folder in folders.values():
        tokenizer().save_pretrained(folder)
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**SHAPE)).float().save_pretrained(folders["qwen3"])
    torch.manual_seed(0)
    Qwen3MoeForCausalLM(Qwen3MoeConfig(**SHAPE, **EXPERTS)).float().save_pretrained(folders["qwen3_moe"])
    print(json.dumps(folders))


main()
