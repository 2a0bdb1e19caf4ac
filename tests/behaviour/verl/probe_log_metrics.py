"""Probe: what verl's trainers print on the console, and every metric that verl's functions and code name.

Usage: probe_log_metrics.py MODEL TREE
"""

import ast
import contextlib
import json
import numbers
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import trainer_in_process as tip
from names_in_code import keys, timer_of

MODEL, TREE = sys.argv[1], Path(sys.argv[2])
ACTOR = "actor_rollout_ref.actor"
TRAINERS = ("verl/trainer/ppo/ray_trainer.py", "recipe/dapo/dapo_ray_trainer.py")
# Files whose code writes metrics by name; what is computed from a name (timing_s/..., mismatch/...) is run instead.
WRITERS = (
    *TRAINERS,
    "verl/workers/fsdp_workers.py",
    "verl/workers/megatron_workers.py",
    "verl/workers/actor/dp_actor.py",
    "verl/workers/actor/megatron_actor.py",
    "verl/workers/critic/dp_critic.py",
    "verl/workers/critic/megatron_critic.py",
    "verl/experimental/agent_loop/agent_loop.py",
)
WRITTEN = re.compile(r"(actor|critic|perf|train|training|val-aux|generation_timing|agent_loop)/[\w/]+")
TIMED = ("generation_timing/", "agent_loop/")


class TimedWorkers(tip.Workers):
    """Reports the time of generation as verl's FSDP worker does, with verl's functions."""

    def __init__(self, config, engines=1):
        super().__init__(config, engines)
        self.seconds = []

    def generate_sequences(self, batch):
        from verl.utils.profiler.performance import reduce_timing, simple_timer, topk_reduce_ratio_min_max

        timing = {}
        with simple_timer("generate_sequences", timing):
            output = super().generate_sequences(batch)
        # One engine of one rank: gathered are tensors of one figure each.
        ratio, least, most = topk_reduce_ratio_min_max([timing["generate_sequences"]])
        timing = reduce_timing(timing)
        self.seconds.append(timing["generate_sequences"])
        ranks = {"max": most, "min": least, "topk_ratio": ratio}
        output.meta_info["timing"] = timing | {f"generation_timing/{name}": value for name, value in ranks.items()}
        return output


def trained(run, overrides, trainer=None, **configuration):
    """What `fit` gave to verl's logger at each step, while its console goes to RUN.log."""
    config = tip.compose_config(MODEL, *overrides, **configuration)
    workers = TimedWorkers(config, engines=2)
    with Path(f"{run}.log").open("w") as stream, contextlib.redirect_stdout(stream):
        steps = tip.fit(config, workers, trainer=trainer)
    return {"steps": [numbers_of(step) for step in steps], "generated": workers.seconds}


def numbers_of(metrics):
    """What verl's logger prints of metrics: numbers alone."""
    return {key: float(value) for key, value in metrics.items() if isinstance(value, numbers.Number)}


def dapo():
    """DAPO's trainer, which runs out of data before its last step, and which samples twice where groups are filtered."""
    if not (TREE / TRAINERS[1]).is_file():
        return {}
    from recipe.dapo.dapo_ray_trainer import RayDAPOTrainer

    its = {"trainer": RayDAPOTrainer, "name": "dapo_trainer", "folder": TREE / "recipe/dapo/config"}
    filtered = ["algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=seq_reward"]
    filtered += ["data.gen_batch_size=2", "trainer.total_training_steps=1"]
    return {
        "dapo": trained("dapo", ["trainer.total_training_steps=5"], **its),
        "filtered": trained("filtered", filtered, **its),
    }


def small_batch():
    """Four responses of one to four tokens with all that metrics are computed from."""
    from verl import DataProto

    torch.manual_seed(0)
    mask = (torch.arange(4) < torch.tensor([[1], [2], [3], [4]])).long()
    prompts = torch.tensor([[0, 1, 1]] * 4)
    floats = ("token_level_scores", "token_level_rewards", "advantages", "returns", "values")
    log_probs = {name: -torch.rand(4, 4) for name in ("old_log_probs", "rollout_log_probs", "ref_log_prob")}
    tensors = {
        "responses": torch.ones(4, 4, dtype=torch.long),
        "attention_mask": torch.cat([prompts, mask], dim=1),
        "response_mask": mask,
        **{name: torch.randn(4, 4) for name in floats},
        **log_probs,
    }
    batch = DataProto.from_dict(tensors=tensors)
    batch.non_tensor_batch.update(__num_turns__=np.array([2, 2, 4, 6]), tool_call_counts=np.array([0, 0, 1, 2]))
    batch.meta_info["global_token_num"] = batch.batch["attention_mask"].sum(-1).tolist()
    return batch


def computed(batch, timers):
    """The metrics of verl's functions, run on a batch."""
    from verl.trainer.ppo.core_algos import FixedKLController
    from verl.trainer.ppo.metric_utils import compute_data_metrics, compute_throughout_metrics, compute_timing_metrics
    from verl.trainer.ppo.ray_trainer import apply_kl_penalty
    from verl.utils.debug.metrics import calculate_debug_metrics
    from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions, log_seqlen_unbalance

    timing = {name: 0.5 + place for place, name in enumerate(sorted(timers))}
    lengths = batch.meta_info["global_token_num"]
    partitions = get_seqlen_balanced_partitions(lengths, k_partitions=2, equal_size=True)
    metrics = compute_data_metrics(batch, use_critic=True)
    metrics |= compute_timing_metrics(batch, timing)
    metrics |= compute_throughout_metrics(batch, timing, n_gpus=2)
    metrics |= log_seqlen_unbalance(lengths, partitions, "global_seqlen")
    metrics |= calculate_debug_metrics(SimpleNamespace(batch=dict(batch.batch.items())))
    metrics |= apply_kl_penalty(batch, FixedKLController(0.1))[1]
    return metrics | mismatches(batch)


def mismatches(batch):
    from verl.trainer.ppo.mismatch_helper import compute_rollout_importance_weights

    names = ("old_log_probs", "rollout_log_probs", "response_mask")
    found = {}
    for level in ("token", "sequence", "geometric"):
        for mode in ("truncate", "mask"):
            tensors = [batch.batch[name] for name in names]
            found |= compute_rollout_importance_weights(*tensors, level, mode, rollout_is_threshold=2.0)[1]
    return found


def keys_written():
    """Every metric's name that stands in the code as a key of a dictionary, and the timers of the trainers."""
    found, timers = set(), {"generate_sequences"}
    for path in WRITERS:
        if not (TREE / path).is_file():
            continue
        for node in ast.walk(ast.parse((TREE / path).read_text())):
            found.update(key for key in keys(node) if WRITTEN.fullmatch(key))
            timer = timer_of(node) if path in TRAINERS else None
            timers.update([timer] if timer else [])
    timers.update(name for name in found if name.startswith(TIMED))
    return {name for name in found if not name.startswith(TIMED)}, timers


def printed(metrics):
    """The metrics through verl's own Tracking, at two steps."""
    from verl.utils.tracking import Tracking

    with Path("small.log").open("w") as stream, contextlib.redirect_stdout(stream):
        logger = Tracking("project", "experiment", default_backend=["console"])
        for step in (1, 2):
            logger.log(data=metrics, step=step)
    return {"steps": [numbers_of(metrics)] * 2}


def main():
    written, timers = keys_written()
    small = computed(small_batch(), timers)
    runs = {"grpo": trained("grpo", [f"{ACTOR}.use_kl_loss=True"]), **dapo(), "small": printed(small)}
    for name, run in runs.items():
        run["log"] = Path(f"{name}.log").read_text()
    return {"runs": runs, "names": sorted(written | small.keys())}


print(json.dumps(main()))
