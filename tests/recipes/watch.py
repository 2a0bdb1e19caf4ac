"""Looks on while a shrunk recipe runs: in every process with an engine, after verl's rollout was imported
(PATCHCTL_STANDINS_WATCH). Changes nothing that is computed.

In the folder RECIPE_WATCHED: `weights.UPDATE.RANK.safetensors`, what training gave the engine in an update, and
`tokens.UPDATE.RANK.json`, what the engine answers greedily to PROMPTS with it, before it generates for training.
"""

import json
import os
from pathlib import Path

PROMPTS = [[10, 11, 12, 13, 14, 10, 11, 12], [20, 21, 22, 23, 24, 25], [30, 31], [40, 10, 20, 30, 40, 10, 20]]
LENGTH = 12


def watch(module):
    """vllm_rollout_spmd: its vLLMRollout tells of each update and of what the engine answers after it."""
    rollout = module.vLLMRollout
    rollout.update_weights = _kept(rollout.update_weights)
    rollout.generate_sequences = _asked(rollout.generate_sequences)


def _kept(update):
    async def kept(self, weights, **settings):
        given = {}

        def passed_on():
            for name, weight in weights:
                given[name] = weight.detach().clone().contiguous()
                yield name, weight

        await update(self, passed_on(), **settings)
        self.watched = getattr(self, "watched", 0) + 1
        from safetensors.torch import save_file

        save_file(given, _file("weights", self.watched, "safetensors"))

    return kept


def _asked(generate):
    def asked(self, prompts, **settings):
        from vllm import SamplingParams

        file = _file("tokens", getattr(self, "watched", 0), "json")
        if not Path(file).exists():
            greedy = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)
            rows = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
            found = self.inference_engine.generate(rows, greedy, use_tqdm=False)
            Path(file).write_text(json.dumps([list(one.outputs[0].token_ids) for one in found]))
        return generate(self, prompts, **settings)

    return asked


def _file(kind, update, ending):
    folder = Path(os.environ["RECIPE_WATCHED"])
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder / f"{kind}.{update}.{os.environ.get('RANK', '0')}.{ending}")
