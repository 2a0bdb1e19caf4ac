"""Probe: RayPPOTrainer.fit with and without data_rebalance. Usage: probe_rebalance.py MODEL"""

import json
import os
import sys
from pathlib import Path

import trainer_in_process as tip

# isort: split
import torch
from rebalance_engines import attempt, run

MODEL = sys.argv[1]
ON = "actor_rollout_ref.rollout.data_rebalance=True"
OFF = "actor_rollout_ref.rollout.data_rebalance=False"
SAMPLES = "actor_rollout_ref.rollout.n="
UNBALANCED = "trainer.balance_batch=False"
ONE_STEP = "trainer.total_training_steps=1"
REMAX = "algorithm.adv_estimator=remax"


def compose(*overrides):
    return tip.compose_config(MODEL, "data.train_batch_size=4", SAMPLES + "3", UNBALANCED, *overrides)


def upstream_order():
    """No switch at all: what the unpatched tree does."""
    return run(compose(), engines=4)


def explicitly_off():
    return run(compose(OFF), engines=4)


def switched_on():
    return run(compose(ON), engines=4)


def spread():
    """Prompts an engine, for (engines, samples, ranks an engine), four prompts in the batch."""
    cases = {
        "4x4": (4, 4, 1),
        "2x4": (2, 4, 1),
        "8x4": (8, 4, 1),
        "2x3": (2, 3, 1),
        "4x5": (4, 5, 1),
        "4x3tp2": (4, 3, 2),
    }
    sent = {}
    for name, (engines, samples, ranks) in cases.items():
        config = compose(ON, ONE_STEP, f"{SAMPLES}{samples}")
        sent[name] = run(config, engines, ranks=ranks)["sent"][0]
    return sent


def balanced(*overrides):
    """With upstream's own reordering, by length, after generation."""
    return run(compose("trainer.balance_batch=True", ONE_STEP, *overrides), engines=4)


def dumped(*overrides):
    """The lines of rollout_data_dir."""
    folder = Path(os.path.abspath(f"dump{len(overrides)}"))
    run(compose(f"trainer.rollout_data_dir={folder}", ONE_STEP, *overrides), engines=4, extra_fields=False)
    return [json.loads(line) for line in (folder / "1.jsonl").read_text().splitlines()]


def validated(*overrides):
    """Prompts an engine in the validation before training (greedy, twice each), and in training."""
    return run(
        compose("trainer.val_before_train=True", "actor_rollout_ref.rollout.val_kwargs.n=2", ONE_STEP, *overrides),
        engines=4,
        extra_fields=False,
    )["sent"]


def remax(samples, *overrides):
    return run(compose(REMAX, f"{SAMPLES}{samples}", ONE_STEP, *overrides), engines=4, extra_fields=False)


class OwnFit:
    """Made a trainer below: a training loop of its own, as the trainers of recipe/ have."""

    def fit(self):
        raise NotImplementedError


class OwnDataloader(OwnFit):
    """Its own dataloader too, as recipe/prime has."""

    def _create_dataloader(self, *args):
        pass


class OwnInit(OwnFit):
    """Its own __init__ instead, as recipe/sppo and recipe/one_step_off_policy have."""

    def __init__(self, config, tokenizer, **kwargs):
        self.config, self.tokenizer, self.processor = config, tokenizer, None
        self._create_dataloader(None, None, None, None)


def refused():
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer

    own = {kind.__name__: type(kind.__name__, (kind, RayPPOTrainer), {}) for kind in (OwnFit, OwnDataloader, OwnInit)}
    started = {
        "async": lambda: tip.make_trainer(compose(ON, "actor_rollout_ref.rollout.mode=async")),
        "remax": lambda: tip.make_trainer(compose(ON, REMAX)),
        "skip_rollout": lambda: tip.make_trainer(compose(ON, "actor_rollout_ref.rollout.skip_rollout=True")),
        "text": lambda: tip.make_trainer(compose("actor_rollout_ref.rollout.data_rebalance=on")),
        "number": lambda: tip.make_trainer(compose("actor_rollout_ref.rollout.data_rebalance=1")),
    }
    started |= {name: lambda kind=kind: tip.make_trainer(compose(ON), trainer=kind) for name, kind in own.items()}
    return {name: attempt(lambda start=start: bool(start())) for name, start in started.items()}


def accepted_when_off():
    """The same settings without the switch: nothing of ours refuses them."""
    settings = {
        "async": ["actor_rollout_ref.rollout.mode=async"],
        "remax": [REMAX],
        "skip_rollout": ["actor_rollout_ref.rollout.skip_rollout=True"],
    }
    return {name: attempt(lambda own=own: bool(tip.make_trainer(compose(*own)))) for name, own in settings.items()}


def composed():
    """The field as the command line sets it, and as a worker reads it."""
    from verl.utils.config import omega_conf_to_dataclass

    values = {}
    for name in ("ppo_trainer", "ppo_megatron_trainer"):
        for overrides in ((), (ON,), (OFF,)):
            rollout = tip.compose_config(MODEL, *overrides, name=name).actor_rollout_ref.rollout
            key = f"{name} {' '.join(overrides).rpartition('=')[2]}".strip()
            values[key] = [rollout.data_rebalance, omega_conf_to_dataclass(rollout).data_rebalance]
    return values


def generated_yaml():
    import verl
    import yaml

    folder = Path(verl.__file__).parent / "trainer" / "config"
    names = ("_generated_ppo_trainer.yaml", "_generated_ppo_megatron_trainer.yaml")
    rollouts = [yaml.safe_load((folder / name).read_text())["actor_rollout_ref"]["rollout"] for name in names]
    return [rollout["data_rebalance"] for rollout in rollouts]


def orders():
    """Both orders for many sizes, against their definition; and how a chunk's samples of one prompt are counted."""
    from verl.utils.rollout_order import grouped_order, tiled_order

    wrong = []
    for prompts in range(1, 14):
        for samples in range(1, 10):
            rows = torch.arange(prompts * samples)
            tiled = rows[tiled_order(prompts, samples)]
            expected = [prompt * samples + sample for sample in range(samples) for prompt in range(prompts)]
            if tiled.tolist() != expected or not tiled[grouped_order(prompts, samples)].equal(rows):
                wrong.append([prompts, samples])
            wrong += [[prompts, samples, engines] for engines in range(1, 20) if not _even(tiled, samples, engines)]
    return wrong


def _even(tiled, samples, engines):
    """Sizes that do not divide are cut as torch cuts them (verl's automatic padding does so): shorter at the end."""
    counts = [torch.bincount(chunk // samples) for chunk in tiled.chunk(engines)]
    if engines >= samples:
        return max(int(count.max()) for count in counts) == 1
    if len(tiled) % engines:
        return max(int(count.max()) for count in counts) <= -(-samples // engines) + 1
    allowed = {samples // engines, -(-samples // engines)}
    prompts = len(tiled) // samples
    return all(set(torch.bincount(c // samples, minlength=prompts).tolist()) <= allowed for c in tiled.chunk(engines))


def rows_lost():
    """Engines that return fewer rows than they were sent, and a batch that is no whole number of prompts."""
    from verl import DataProto
    from verl.utils.rollout_order import generate_spread

    class Losing:
        def generate_sequences(self, batch):
            return batch[:-1]

    batch = DataProto.from_dict({"x": torch.arange(6)})
    return {
        "lost": attempt(lambda: bool(generate_spread(Losing(), batch, 3))),
        "not_whole": attempt(lambda: bool(generate_spread(Losing(), batch, 4))),
    }


def asynchronous():
    """Why mode=async is refused: what verl's own code does with requests, grouped and tiled, two samples of four."""
    import asyncio

    from verl.experimental.agent_loop.agent_loop import AsyncLLMServerManager, get_trajectory_info

    grouped = [prompt for prompt in range(4) for _ in range(2)]
    manager = AsyncLLMServerManager(None, [f"server{number}" for number in range(4)])
    servers = [manager._choose_server(f"request{row}") for row in range(len(grouped))]

    def samples(prompts):
        return [row["rollout_n"] for row in asyncio.run(get_trajectory_info(1, prompts, False))]

    return {
        "servers_a_prompt": [len(set(servers[row : row + 2])) for row in range(0, len(grouped), 2)],
        "requests_a_server": sorted(servers.count(server) for server in set(servers)),
        "traced_grouped": samples(grouped),
        "traced_tiled": samples([*range(4), *range(4)]),
    }


CASES = {
    "upstream_order": upstream_order,
    "explicitly_off": explicitly_off,
    "switched_on": switched_on,
    "spread": spread,
    "balanced": balanced,
    "balanced_on": lambda: balanced(ON),
    "dumped": dumped,
    "dumped_on": lambda: dumped(ON),
    "validated": validated,
    "validated_on": lambda: validated(ON),
    "remax_one": lambda: remax(1),
    "remax_one_on": lambda: remax(1, ON),
    "remax_two": lambda: remax(2),
    "refused": refused,
    "accepted_when_off": accepted_when_off,
    "composed": composed,
    "generated_yaml": generated_yaml,
    "orders": orders,
    "rows_lost": rows_lost,
    "asynchronous": asynchronous,
}
print(json.dumps({name: attempt(case) for name, case in CASES.items()}))
