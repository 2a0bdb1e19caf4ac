#!/usr/bin/env python3
"""Write a model with random weights and its tokenizer, as Hugging Face has them: a Qwen3 of two layers for `make demo`.

Usage: tiny_model.py FOLDER [SEED]. One token a character: digits, + and =, and the four special ones; 90 thousand weights.
Nothing is downloaded, and the same seed gives the same bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

SPECIAL = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}
CHARACTERS = "0123456789+="
CHAT_TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}"


def character_tokenizer(characters: Sequence[str], chat_template: str) -> PreTrainedTokenizerFast:
    """One token a character, after the four special ones."""
    tokens = {token: number for number, token in enumerate([*SPECIAL.values(), *characters])}
    words = Tokenizer(models.WordLevel(tokens, unk_token=SPECIAL["unk_token"]))
    words.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    words.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=words, **SPECIAL)
    fast.chat_template = chat_template
    return fast


def model(tokens: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """Two layers, 64 columns, wider random numbers than usual: the first answers differ from one sum to another."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokens),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=64,
        initializer_range=0.05,
        tie_word_embeddings=False,
        pad_token_id=tokens.pad_token_id,
        bos_token_id=tokens.bos_token_id,
        eos_token_id=tokens.eos_token_id,
    )
    return Qwen3ForCausalLM(config).float()


def main() -> None:
    folder, seed = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    tokens = character_tokenizer(CHARACTERS, CHAT_TEMPLATE)
    tokens.save_pretrained(folder)
    made = model(tokens, seed)
    made.save_pretrained(folder)
    print(f"{folder}: {type(made).__name__}, {made.num_parameters():,} weights, {len(tokens)} tokens, seed {seed}")


if __name__ == "__main__":
    main()
