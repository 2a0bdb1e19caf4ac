"""Looks on while a shrunk recipe runs: in every process with an engine, after verl's rollout was imported, and in the driver,
after its trainer was (PATCHCTL_STANDINS_WATCH). Changes nothing that is computed, but for the answers of a run that is
compared.

In the folder RECIPE_WATCHED: `weights.UPDATE.RANK.safetensors`, what training gave the engine in an update;
`tokens.UPDATE.RANK.json`, what the engine answers greedily to PROMPTS with it, before it generates for training;
`samples.CALL.pt`, what all engines together generated for training, and in `samples.CALL.json` how many different answers
that is; `metrics.jsonl`, what the trainer logged of each step (Ray may lose the last lines that its driver wrote).
With RECIPE_SAMPLES, such a folder of another run, training is given that run's answers in place of those that were generated:
prompt by prompt, the first answer for the first. With RECIPE_LOOKED_INTO, what the engine holds after an update is kept as well, and
what memory that took (`held`).
"""

import itertools
import json
import os
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path

PROMPTS = [[10, 11, 12, 13, 14, 10, 11, 12], [20, 21, 22, 23, 24, 25], [30, 31], [40, 10, 20, 30, 40, 10, 20]]
LENGTH = 12
RAY_STARTS_S = 300


def watch(module):
    """vllm_rollout_spmd: its vLLMRollout tells of each update and of what the engine answers after it."""
    rollout = module.vLLMRollout
    rollout.update_weights = _kept(rollout.update_weights)
    rollout.generate_sequences = _asked(rollout.generate_sequences)


def _kept(update):
    async def kept(self, weights, **settings):
        from safetensors.torch import save_file

        given = {}
        self.watched = getattr(self, "watched", 0) + 1
        with _looked_into(self) as aside:

            def passed_on():
                for name, weight in weights:
                    with aside():
                        given[name] = weight.detach().clone().contiguous()
                    yield name, weight

            await update(self, passed_on(), **settings)
        save_file(given, _file("weights", self.watched, "safetensors"))

    return kept


@contextmanager
def _looked_into(rollout):
    """Around an update; what it yields is around what is not of the update."""
    if "RECIPE_LOOKED_INTO" not in os.environ:
        yield nullcontext
        return
    from held import looked_into

    with looked_into(rollout.inference_engine, lambda ending: _file("held", rollout.watched, ending)) as taken:
        yield taken.aside


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


def watch_trainer(module):
    """ray_trainer: what its trainers' workers generate goes through here, DAPO's trainer included."""
    made = module.RayPPOTrainer.init_workers

    def init_workers(self):
        made(self)
        group = self.actor_rollout_wg
        group.generate_sequences = _sampled(group.generate_sequences)

    module.RayPPOTrainer.init_workers = init_workers


def _sampled(generate):
    calls = itertools.count(1)

    def sampled(prompts):
        import torch

        generated, name = generate(prompts), f"samples.{next(calls)}.pt"
        own = {key: value.clone() for key, value in generated.batch.items()}
        torch.save(own, _watched() / name)
        answers = [tuple(row) for row in torch.cat([own["prompts"], own["responses"]], -1).tolist()]
        count = {"answers": len(answers), "different": len(set(answers))}
        (_watched() / name).with_suffix(".json").write_text(json.dumps(count))
        if "RECIPE_SAMPLES" in os.environ:
            other = torch.load(Path(os.environ["RECIPE_SAMPLES"]) / name)
            rows = same_prompts(own["prompts"].tolist(), other["prompts"].tolist())
            for key in own.keys() & other.keys():
                generated.batch[key] = other[key][rows]
        return generated

    return sampled


def watch_metrics(module):
    """verl.utils.tracking: what is logged of each step."""
    log = module.Tracking.log

    def kept(self, data, step, backend=None):
        numbers = {name: float(value) for name, value in data.items() if not hasattr(value, "__len__")}
        with (_watched() / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, "data": numbers}) + "\n")
        return log(self, data, step, backend)

    module.Tracking.log = kept


def wait_for_ray(module):
    """ray._private.services: Ray's driver gives its own node 30 seconds to register, a busy machine takes longer."""
    get_node = module.get_node

    def waited(*given, **named):
        deadline = time.monotonic() + RAY_STARTS_S
        while True:
            try:
                return get_node(*given, **named)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    module.get_node = waited


def same_prompts(wanted, found):
    """For each of `wanted` the row of `found` with the same prompt: its n-th for the n-th. KeyError, IndexError for none."""
    rows = {}
    for row, prompt in enumerate(found):
        rows.setdefault(tuple(prompt), []).append(row)
    return [rows[tuple(prompt)].pop(0) for prompt in wanted]


def _watched():
    folder = Path(os.environ["RECIPE_WATCHED"])
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _file(kind, update, ending):
    return str(_watched() / f"{kind}.{update}.{os.environ.get('RANK', '0')}.{ending}")
