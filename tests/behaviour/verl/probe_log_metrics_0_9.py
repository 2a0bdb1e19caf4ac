"""Probe: every metric that verl v0.9.0's v1 trainer puts on the console, by running its functions and by reading its code.

Usage: probe_log_metrics_0_9.py TREE

The transfer queue is a dictionary (`Store`). Prints the names, and for those that were read the files that write them.
"""

import ast
import json
import re
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import verl.trainer.ppo.v1.replay_buffer as replay_buffer
import verl.trainer.ppo.v1.trainer_base as trainer_base
from names_in_code import function, keys, timer_of
from omegaconf import OmegaConf
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl import DataProto
from verl.trainer.ppo.core_algos import FixedKLController
from verl.trainer.ppo.metric_utils import RolloutMoELoadBalanceMetricsAccumulator
from verl.trainer.ppo.ray_trainer import apply_kl_penalty
from verl.trainer.ppo.rollout_corr_helper import (
    SUPPORTED_ROLLOUT_RS_OPTIONS,
    compute_rollout_correction_and_rejection_mask,
)
from verl.utils import tensordict_utils as tu
from verl.utils.debug.metrics import calculate_debug_metrics
from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions, log_seqlen_unbalance

TREE = Path(sys.argv[1])
BASE = "verl/trainer/ppo/v1/trainer_base.py"
SYNC = "verl/trainer/ppo/v1/trainer_sync.py"
CORE = "verl/trainer/ppo/core_algos.py"
DELTA = "verl/checkpoint_engine/delta_checkpoint_engine.py"
LOSSES = "verl/workers/utils/losses.py"
WORKERS = "verl/workers/engine_workers.py"
WRITTEN = re.compile(r"(actor|critic|perf|training|val-aux|checkpoint_engine)/[\w/]+")
# What _log_rollout_data times comes after the step's figures are made, and is on no line.
TIMED = ((BASE, "fit"), (BASE, "_step_once"), (SYNC, "on_step_end"))
BOTH = ("actor", "critic")
# What the workers report, under names that the trainer puts the model's name before.
REPORTED = (
    (LOSSES, "ppo_loss", BOTH[:1]),
    (LOSSES, "value_loss", BOTH[1:]),
    (WORKERS, "_postprocess_output", BOTH),
    (WORKERS, "train_batch", BOTH),
    ("verl/workers/engine/base.py", "train_batch", BOTH),
    ("verl/workers/engine/megatron/transformer_impl.py", "forward_backward_batch", BOTH[:1]),
    ("verl/trainer/distillation/losses.py", "distillation_ppo_loss", BOTH[:1]),
)


def parsed(path):
    return ast.parse((TREE / path).read_text())


def written():
    """Names that stand in the code, each with the files that write it."""
    found = defaultdict(set)
    for path in (BASE, CORE, DELTA):
        for node in ast.walk(parsed(path)):
            for key in keys(node):
                if WRITTEN.fullmatch(key):
                    found[key].add(path)
    for path, name, models in REPORTED:
        for key in reported(function(parsed(path), name)):
            for model in models:
                found[named(key, model)].add(path)
    return {name: sorted(files) for name, files in found.items()}


def reported(body):
    """Keys that a function gives to metrics, not those that it takes out."""
    for node in ast.walk(body):
        if isinstance(node, ast.Assign):
            target = node.targets[0]
            if isinstance(target, ast.Subscript) and "metrics" in ast.unparse(target.value):
                yield from keys(target)
            elif isinstance(target, ast.Name) and target.id == "metrics":
                yield from keys(node.value)


def named(key, model):
    """As _update_actor and _update_critic name it."""
    if key == "mfu":
        return f"perf/mfu/{model}"
    return key if key.startswith(f"{model}/") else f"{model}/{key}"


def timers():
    bodies = [function(parsed(path), name) for path, name in TIMED]
    return {timer for body in bodies for node in ast.walk(body) if (timer := timer_of(node))}


class Store:
    """Stands for the transfer queue: one nested tensor a field."""

    def __init__(self, fields):
        self.fields = fields

    def kv_batch_get(self, keys, partition_id=None, select_fields=None):
        names = self.fields.keys() & set(select_fields)
        return TensorDict({name: self.fields[name] for name in names}, batch_size=len(keys))


def nested(*rows):
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


def of_a_step():
    """The trainer's own figures of four responses of one to four tokens: with a critic, drafts, and routes of two experts."""
    lengths = range(1, 5)
    floats = ("values", "advantages", "returns", "rm_scores", "token_level_rewards")
    drafts = {"spec_num_draft_tokens": 4, "spec_num_accepted_tokens": 2, "spec_num_verify_steps": 2}
    fields = {
        "prompts": nested(*[torch.ones(2, dtype=torch.long)] * 4),
        "responses": nested(*(torch.ones(n, dtype=torch.long) for n in lengths)),
        "response_mask": nested(*(torch.ones(n, dtype=torch.long) for n in lengths)),
        "routed_experts": nested(*(torch.zeros(n, 1, 1, dtype=torch.long) for n in lengths)),
        "num_turns": torch.tensor([2, 2, 4, 6]),
        "extra_fields": tu.get_tensordict({"extra_fields": [drafts] * 4})["extra_fields"],
        **{name: nested(*(torch.rand(n) for n in lengths)) for name in floats},
    }
    trainer_base.tq = Store(fields)
    rollout, model = {"moe_load_balance_metrics_interval": 1}, {"mtp": {"enable": True, "enable_rollout": True}}
    experts = RolloutMoELoadBalanceMetricsAccumulator(OmegaConf.create({"num_experts": 2}))
    trainer = SimpleNamespace(
        config=OmegaConf.create({"actor_rollout_ref": {"rollout": rollout, "model": model}}),
        use_critic=True,
        _rollout_moe_lb_metrics_accumulator=experts,
        _get_n_gpus_for_throughput=lambda: 2,
    )
    tags = [{"min_global_steps": 0, "max_global_steps": 0}] * 4
    batch, metrics = KVBatchMeta(keys=list("abcd"), tags=tags, partition_id="train"), {}
    timing = {name: 0.5 + place for place, name in enumerate(sorted(timers()))}
    trainer_base.PPOTrainer._compute_metrics(trainer, batch, metrics, timing, global_steps=1, epoch=0)
    return metrics


def of_the_batch():
    """What the steps before log of the batch: its balance, KL in the reward, and the rollout's probabilities beside training's."""
    torch.manual_seed(0)
    mask = (torch.arange(4) < torch.tensor([[1], [2], [3], [4]])).long()
    probabilities = {name: -torch.rand(4, 4) for name in ("old_log_probs", "rollout_log_probs", "ref_log_prob")}
    tensors = {"responses": mask, "response_mask": mask, "token_level_scores": torch.rand(4, 4), **probabilities}
    batch = DataProto.from_dict(tensors=tensors)
    halves = get_seqlen_balanced_partitions([1, 2, 3, 4], k_partitions=2, equal_size=True)
    metrics = log_seqlen_unbalance([1, 2, 3, 4], halves, "global_seqlen")
    metrics |= apply_kl_penalty(batch, FixedKLController(0.1))[1] | calculate_debug_metrics(batch)
    for level in ("token", "sequence"):
        for option in sorted(SUPPORTED_ROLLOUT_RS_OPTIONS):
            policies = (batch.batch[name] for name in ("old_log_probs", "rollout_log_probs", "response_mask"))
            bounds = 2.0 if "k2" in option or "k3" in option else "0.5_2.0"
            metrics |= compute_rollout_correction_and_rejection_mask(
                *policies, rollout_is=level, rollout_rs=option, rollout_rs_threshold=bounds
            )[2]
    return metrics


def of_sampling():
    """Of the replay buffer, where one group of four is of one reward, one failed, and one is left over."""
    rewards = {"same": [1, 1], "good": [0, 1], "left": [0, 1]}
    items = {uid: {"is_prompt": True, "status": "finished", "global_steps": 1} for uid in rewards}
    items["failed"] = {"is_prompt": True, "status": "failure", "global_steps": 1}
    of = {f"{uid}_{place}_0": reward for uid, two in rewards.items() for place, reward in enumerate(two)}
    items |= {key: {"seq_len": 4} for key in of}
    replay_buffer.tq = SimpleNamespace(
        kv_list=lambda: {"train": items},
        kv_clear=lambda keys, partition_id: [items.pop(key) for key in keys],
        kv_batch_get=lambda keys, **_: {"extra_fields": [{"reward_extra_info": {"acc": of[key]}} for key in keys]},
    )
    settings = {"trainer_mode": "sync", "trainer_config": {}, "sampler_kwargs": {}, "gen_batch_size": 1}
    off_policy = {"max_off_policy_threshold": 1, "max_off_policy_strategy": "drop"}
    filtering = {"filter_groups_metric": "acc", "train_batch_size": 1, "sync_refill_failed_groups": True}
    buffer = replay_buffer.ReplayBuffer(**settings, **off_policy, **filtering, refill_fn=lambda count: None)
    metrics = buffer.sample(global_steps=1, partition_id="train", batch_size=1)[1]
    metrics.pop(replay_buffer.DAPO_FILTERED_REWARD_COUNTS_KEY)  # a table, which the console does not print
    return metrics


def of_validation():
    given = {"reward": [0.0, 1.0], "acc": [0.0, 1.0], "score": [0.0, 1.0]}
    return trainer_base.PPOTrainer._val_metrics_update(None, ["made"] * 2, ["a", "a"], given, np.array([2, 2]))


def main():
    metrics = of_a_step() | of_the_batch() | of_sampling() | of_validation()
    # With bypass mode the loss reports them, as one more of the actor's.
    metrics |= {f"actor/{name}": value for name, value in metrics.items() if name.startswith("rollout_corr/")}
    code = written()
    return {"names": sorted(metrics.keys() | code.keys()), "written": code}


print(json.dumps(main()))
