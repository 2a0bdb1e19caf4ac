"""Probe: what Hugging Face's own implementation answers with the weights that an engine was given.

Usage: answers.py MODEL WATCHED UPDATES. For each update the weights of all ranks together, which must be those of the whole
model, and greedy tokens for the prompts of `watch`. Prints {update: {"missing", "unexpected", "disagreeing" (ranks gave
different values), "tokens", "nearest" (the largest logit less that of the engine's token, at its worst place)}}.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM
from watch import LENGTH, PROMPTS


def weights_of(folder, update):
    found, disagreeing = {}, []
    for file in sorted(folder.glob(f"weights.{update}.*.safetensors")):
        for name, weight in load_file(file).items():
            if name in found and not torch.equal(found[name], weight):
                disagreeing.append(name)
            found[name] = weight
    return found, sorted(set(disagreeing))


def answers(model, engine):
    """Greedy tokens, and how far below the best the engine's tokens are at the worst place, given what it wrote before."""
    tokens, behind = [], 0.0
    for prompt, said in zip(PROMPTS, engine, strict=True):
        with torch.no_grad():
            made = model.generate(
                torch.tensor([prompt]), max_new_tokens=LENGTH, do_sample=False, eos_token_id=None, pad_token_id=0
            )
            logits = model(torch.tensor([prompt + said])).logits[0, len(prompt) - 1 : -1].float()
        tokens.append(made[0, len(prompt) :].tolist())
        chosen = logits.gather(-1, torch.tensor(said)[:, None])[:, 0]
        behind = max(behind, float((logits.max(-1).values - chosen).max()))
    return tokens, behind


def main():
    config, folder = AutoConfig.from_pretrained(sys.argv[1]), Path(sys.argv[2])
    results = {}
    for update in json.loads(sys.argv[3]):
        weights, disagreeing = weights_of(folder, update)
        model = AutoModelForCausalLM.from_config(config, torch_dtype=torch.float32).eval()
        loaded = model.load_state_dict(weights, strict=False)
        tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
        engine = json.loads((folder / f"tokens.{update}.0.json").read_text())
        tokens, behind = answers(model, engine)
        results[update] = {
            "missing": sorted(set(loaded.missing_keys) - tied),
            "unexpected": sorted(loaded.unexpected_keys),
            "disagreeing": disagreeing,
            "tokens": tokens,
            "behind": behind,
        }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
