"""Probe: what Hugging Face's own implementation answers with the weights that an engine was given.

Usage: answers.py MODEL WATCHED UPDATES LIMIT TIE. For each update the weights of all ranks together, which must be those of the whole
model, and greedy tokens for the prompts of `watch`. Prints {update: {"missing", "unexpected", "disagreeing" (ranks gave
different values), "tokens", "behind" (the largest logit less that of the engine's token, at its worst place), "rounded", "turned"}}.

"rounded" is how far an engine with experts that is over LIMIT behind is when near ties of its routers are "turned" (`ties`; their
margins), and "behind" itself for others.
"""

import copy
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import transformers
from safetensors.torch import load_file, save_file
from ties import behind_at, explained
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


def answers(model, engine, limit, tie):
    """Greedy tokens, and how far below the best the engine's tokens are at the worst place, given what it wrote before: as it
    is, and with near ties turned."""
    tokens, behind, rounded, turned = [], 0.0, 0.0, []
    config = model.config
    experts = getattr(config, "num_experts", None) or getattr(config, "n_routed_experts", None)
    for prompt, said in zip(PROMPTS, engine, strict=True):
        with torch.no_grad():
            made = model.generate(
                torch.tensor([prompt]), max_new_tokens=LENGTH, do_sample=False, eos_token_id=None, pad_token_id=0
            )
        tokens.append(made[0, len(prompt) :].tolist())
        found = float(behind_at(model, prompt, said).max())
        behind = max(behind, found)
        if experts and found > limit:
            found, turns = explained(copy.deepcopy(model), prompt, said, limit, tie)
            turned += [round(turn.margin, 4) for turn in turns]
        rounded = max(rounded, found)
    return tokens, behind, rounded, turned


def model_of(config, weights):
    """Hugging Face's model in float32 with these weights, by a checkpoint's names; those that it misses, and those that it has not."""
    if int(transformers.__version__.partition(".")[0]) < 5:
        model = AutoModelForCausalLM.from_config(config, torch_dtype=torch.float32).eval()
        loaded = model.load_state_dict(weights, strict=False)
        return model, loaded.missing_keys, loaded.unexpected_keys
    # It has the experts of a layer in one tensor, and lays a checkpoint's out anew when it reads one.
    with TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        save_file(weights, Path(folder) / "model.safetensors", metadata={"format": "pt"})
        model, found = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    return model.eval(), found["missing_keys"], found["unexpected_keys"]


def main():
    config, folder = AutoConfig.from_pretrained(sys.argv[1]), Path(sys.argv[2])
    results = {}
    for update in json.loads(sys.argv[3]):
        weights, disagreeing = weights_of(folder, update)
        model, missing, unexpected = model_of(config, weights)
        tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
        engine = json.loads((folder / f"tokens.{update}.0.json").read_text())
        tokens, behind, rounded, turned = answers(model, engine, *map(float, sys.argv[4:]))
        results[update] = {
            "missing": sorted(set(missing) - tied),
            "unexpected": sorted(unexpected),
            "disagreeing": disagreeing,
            "tokens": tokens,
            "behind": behind,
            "rounded": rounded,
            "turned": turned,
        }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
