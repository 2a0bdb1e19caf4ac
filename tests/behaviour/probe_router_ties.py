"""Probe: what `ties` of tests/recipes explains and what it does not, with tiny random models. Usage: probe_router_ties.py ARCHITECTURE"""

import copy
import json
import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "recipes"))

from made_model import OF, SHAPE
from ties import Routers, behind_at, explained

LIMIT, ANSWER = 0.25, 6


def made(architecture, seed):
    name, more = OF[architecture]
    torch.manual_seed(seed)
    config = AutoConfig.for_model(name, **SHAPE | more | {"num_hidden_layers": 3})
    return AutoModelForCausalLM.from_config(config, torch_dtype=torch.float32).eval()


def greedy(model, prompt):
    with torch.no_grad():
        tokens = model.generate(
            torch.tensor([prompt]), max_new_tokens=ANSWER, do_sample=False, eos_token_id=None, pad_token_id=0
        )
    return tokens[0, len(prompt) :].tolist()


def other_answer(model):
    """A prompt, an answer to it whose last token is another since one choice of a router's is turned, and that turn."""
    for first in range(10, 100):
        prompt = [first, 20, 30]
        said = greedy(model, prompt)
        routers = Routers(turned := copy.deepcopy(model))
        behind_at(turned, prompt, said)
        for turn in routers.near(torch.inf):
            if turn.position != len(prompt) + ANSWER - 2:
                continue
            routers.turns[:] = [turn]
            with torch.no_grad():
                token = int(turned(torch.tensor([prompt + said[:-1]])).logits[0, -1].argmax())
            told = [*said[:-1], token]
            if behind_at(model, prompt, told).max() > LIMIT:
                return prompt, told, turn
    raise AssertionError("no choice makes another answer")


def main():
    model = made(sys.argv[1], 0)
    prompt, told, turn = other_answer(model)
    own = copy.deepcopy(model)
    Routers(own)
    within, near = explained(copy.deepcopy(model), prompt, told, LIMIT, turn.margin * 1.001)
    routers = Routers(chosen := copy.deepcopy(model))
    routers.turns.append(turn)
    unrelated = explained(copy.deepcopy(model), prompt, greedy(made(sys.argv[1], 1), prompt), LIMIT, 0.05)
    print(
        json.dumps(
            {
                "own": float(behind_at(own, prompt, greedy(model, prompt)).max()),
                "told": float(behind_at(model, prompt, told).max()),
                "turned": float(behind_at(chosen, prompt, told)[-1]),
                "within": within,
                "margins": [one.margin for one in near],
                "none": explained(copy.deepcopy(model), prompt, told, LIMIT, 0.0),
                "margin": turn.margin,
                "unrelated": unrelated[0],
            }
        )
    )


if __name__ == "__main__":
    main()
