"""Probe: steps of verl's v1 trainer on a tiny Qwen3: old log-probabilities, where they are computed, and the update.

Usage: probe_skip_old_log_prob.py MODEL CASE...   (a JSON list of Hydra overrides; "old" is one: the batch has old log-probabilities; "another
class" is one: the loss has a configuration class of somebody else's, without the field of the switch; "padded" is one: the last row fills the batch)

Real: verl's trainer methods, worker, FSDP engine and loss, on gloo. The transfer queue is a dictionary (`Store`), and the
worker group calls the worker of this process, which has every other row with two processes. Prints for each case what was
called, the metrics, a digest of the weights after it, what was refused, and how often the update kept the logits for its backward.
"""

import dataclasses
import hashlib
import json
import os
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import cpu_platform  # noqa: F401  (before all else of verl's)
import torch
import torch.distributed as dist
import verl
import verl.trainer.ppo.v1.trainer_base as trainer_base
from hydra import compose, initialize_config_dir
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.utils import tensordict_utils as tu
from verl.workers.engine_workers import ActorRolloutRefWorker

PROMPTS = [[10, 11, 12], [20, 21, 22, 23, 24]]
ANSWERS = [[30, 31, 32, 33], [40, 41], [50, 51, 52], [60, 61, 62, 63, 64]]
WORDS = ("old", "another class", "padded")
ALWAYS = [
    "actor_rollout_ref.actor.strategy=fsdp2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
    "actor_rollout_ref.actor.fsdp_config.model_dtype=float32",
    "actor_rollout_ref.actor.use_torch_compile=False",
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile=False",
    "actor_rollout_ref.actor.optim.lr=0.01",
    "actor_rollout_ref.actor.optim.total_training_steps=10",
    "actor_rollout_ref.model.use_remove_padding=False",
    "+actor_rollout_ref.model.override_config.attn_implementation=eager",
    "actor_rollout_ref.rollout.n=2",
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2",
    "actor_rollout_ref.rollout.calculate_log_probs=False",
    "data.train_batch_size=2",
    "trainer.device=cpu",
]


class Store:
    """Stands for the transfer queue: one nested tensor a field."""

    def __init__(self):
        self.fields = {}

    def kv_batch_get(self, keys, partition_id=None, select_fields=None):
        names = [name for name in select_fields or self.fields if name in self.fields]
        return TensorDict({name: self.fields[name] for name in names}, batch_size=len(keys))

    def kv_batch_put(self, keys, partition_id=None, fields=None):
        self.fields |= dict(fields.items())
        return KVBatchMeta(keys=keys, tags=[{} for _ in keys], partition_id=partition_id)


class Group:
    """The worker group of one rank: what the queue's bridge does, then the worker."""

    def __init__(self, worker, store):
        self.worker, self.store, self.called = worker, store, []

    def _data(self, name, batch):
        self.called.append(name)
        data = self.store.kv_batch_get(batch.keys)
        tu.assign_non_tensor(data, **batch.extra_info)
        return data

    def compute_log_prob(self, batch):
        output = self.worker.compute_log_prob(self._data("compute_log_prob", batch))
        return self.store.kv_batch_put(batch.keys, batch.partition_id, output.select("log_probs", "entropy"))

    def update_actor(self, batch):
        return self.worker.update_actor(self._data("update_actor", batch))


def nested(rows, dtype=torch.long):
    return torch.nested.as_nested_tensor([torch.tensor(row, dtype=dtype) for row in rows], layout=torch.jagged)


def batch_into(store, padded):
    """Two prompts with two answers each, and made-up advantages. Rows differ in both lengths; the last may only fill the batch."""
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    prompts, answers = [prompt for prompt in PROMPTS for _ in range(2)][mine], ANSWERS[mine]
    whole = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
    advantages = [[0.5 - row + 0.1 * at for at in range(len(answer))] for row, answer in enumerate(answers)]
    masks = [[1] * (len(answer) - 1) + [row % 2] for row, answer in enumerate(answers)]
    if padded:
        masks[-1] = [0] * len(answers[-1])
    mask = nested(masks)
    store.fields = {
        "input_ids": nested(whole),
        "position_ids": nested([list(range(len(row))) for row in whole]),
        "prompts": nested(prompts),
        "responses": nested(answers),
        "response_mask": mask,
        "loss_mask": mask,
        "advantages": nested(advantages, torch.float32),
    }
    names = [f"row{at}" for at in range(len(whole))]
    tags = [{"is_padding": padded and name == names[-1]} for name in names]
    return KVBatchMeta(keys=names, tags=tags, partition_id="train", extra_info={"temperature": 1.0})


class Trainer(trainer_base.PPOTrainer):
    """The two methods of a step that this is about, of a trainer without Ray."""

    def __init__(self, config, group):
        self.config, self.actor_rollout_wg = config, group

    def on_sample_end(self):
        raise NotImplementedError

    def on_step_end(self):
        raise NotImplementedError


def digest(engine):
    state = hashlib.sha256()
    for name, parameter in sorted(engine.module.named_parameters()):
        whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        state.update(name.encode() + whole.detach().contiguous().numpy().tobytes())
    return state.hexdigest()


class AnotherClass(SimpleNamespace):
    def get(self, name, default=None):
        return getattr(self, name, default)


def with_another_class(loss):
    ours = loss.keywords["config"]
    names = [one.name for one in dataclasses.fields(ours) if one.name != "skip_old_log_prob"]
    return partial(loss.func, config=AnotherClass(**{name: getattr(ours, name) for name in names}))


class Kept(torch.autograd.graph.saved_tensors_hooks):
    """Counts the tensors as wide as the vocabulary that autograd keeps."""

    def __init__(self, vocabulary):
        self.count = 0

        def keep(tensor):
            self.count += tensor.dim() > 1 and tensor.shape[-1] == vocabulary
            return tensor

        super().__init__(keep, lambda tensor: tensor)


def step(model, settings):
    with_old, another = "old" in settings, "another class" in settings
    padded = "padded" in settings
    settings = [*ALWAYS, f"actor_rollout_ref.model.path={model}", *(one for one in settings if one not in WORDS)]
    folder = Path(verl.__file__).parent / "trainer" / "config"
    with initialize_config_dir(str(folder), version_base=None):
        config = compose("ppo_trainer", overrides=settings)
    torch.manual_seed(0)
    worker = ActorRolloutRefWorker(config.actor_rollout_ref, "actor")
    try:
        worker.init_model()
    except ValueError as refusal:
        return {"called": [], "error": str(refusal)}
    if another:
        worker.actor.set_loss_fn(with_another_class(worker.loss_fn))
    trainer_base.tq = store = Store()
    group = Group(worker, store)
    batch, metrics = batch_into(store, padded), {}
    trainer = Trainer(config, group)
    before, error = digest(worker.actor.engine), None
    kept = Kept(worker.actor.engine.module.config.vocab_size)
    try:
        batch = trainer._compute_old_log_prob(batch, metrics)
        if with_old:
            store.fields["old_log_probs"] = store.fields["advantages"]
        with kept:
            trainer._update_actor(batch, metrics)
    except ValueError as refusal:
        error = str(refusal)
    after = digest(worker.actor.engine)
    figures = {
        name: value for name, value in metrics.items() if not name.startswith("actor/perf") and "mfu" not in name
    }
    changed = before != after
    return {
        "called": group.called,
        "metrics": figures,
        "weights": after,
        "changed": changed,
        "error": error,
        "kept": kept.count,
    }


def main():
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("MASTER_PORT", "0")
    dist.init_process_group("gloo")
    results = [step(sys.argv[1], json.loads(case)) for case in sys.argv[2:]]
    dist.destroy_process_group()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
